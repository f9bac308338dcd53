"""Models: a Megatron `GPTModel` built from a Hugging Face Llama, its weights read and written, its tokenizer found."""
