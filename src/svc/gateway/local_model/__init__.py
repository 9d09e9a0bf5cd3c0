"""The embedded llama.cpp server."""
