"""The embedded model: a llama.cpp server in a child process."""
