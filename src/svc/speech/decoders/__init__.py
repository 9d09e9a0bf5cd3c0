"""Decoders from audio files to samples, one module per library. Only `svc.speech.decoder` imports them."""
