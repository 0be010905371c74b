"""In the place of what others call: DeepSelect, vLLM, transformers. Import the submodule that you need."""
