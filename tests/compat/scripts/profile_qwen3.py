# profile_qwen3.py
from optimum.rbln import RBLNQwen3ForCausalLM
from transformers import AutoTokenizer

model_id = "Qwen/Qwen3-1.7B"

model = RBLNQwen3ForCausalLM.from_pretrained(
    model_id,
    export=True,
    rbln_batch_size=1,
    rbln_max_seq_len=8192,
    rbln_num_devices=1,
    rbln_activate_profiler=True,
)

tokenizer = AutoTokenizer.from_pretrained(model_id)
inputs = tokenizer(
    "Give me a short introduction to large language models.", return_tensors="pt"
)

output_sequence = model.generate(**inputs, max_new_tokens=4, do_sample=False)
print(tokenizer.decode(output_sequence[0], skip_special_tokens=True))
