"""Text to speech: voices, sentences, encoders, and the process that speaks."""
