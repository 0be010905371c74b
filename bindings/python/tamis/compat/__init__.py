"""In the place of what others call: DeepSelect, vLLM, transformers. Each submodule is imported only when it is asked for."""
