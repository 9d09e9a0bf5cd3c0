"""Add models from GGUF files, the Hugging Face Hub and Ollama, by links to their files."""
