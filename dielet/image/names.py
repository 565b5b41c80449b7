"""The files of a model directory."""

DECODER = "decoder_model_fixed.img"
HEAD = "norm_head_fixed.img"
TABLE = "token_embedding_weight.npy"
COS = "cos_weight.npy"
SIN = "sin_weight.npy"
FILES = (DECODER, HEAD, TABLE, COS, SIN)
DEVICE = "device.toml"
