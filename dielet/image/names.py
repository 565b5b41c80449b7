"""The files of a model directory."""

DECODER = "decoder_model_fixed.img"
HEAD = "norm_head_fixed.img"
TABLE = "token_embedding_weight.npy"
COS = "cos_weight.npy"
SIN = "sin_weight.npy"
FILES = (DECODER, HEAD, TABLE, COS, SIN)
DEVICE = "device.toml"
MODEL_CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
ACCURACY = "accuracy.json"  # of a calibrated model

# What people and the interfaces of `compat` put beside them for other programs: every compilation
# or `save_pretrained` makes them anew.
COMPANIONS = (
    MODEL_CONFIG, "generation_config.json", "chat_template.jinja", TOKENIZER,
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "rbln_config.json",
)  # fmt: skip
COMPANION_SUFFIX = ".rbln"
