"""From text to tokens and back: chat templates, the decoding loop, sampling, streaming."""
