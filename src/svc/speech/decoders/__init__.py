"""Decoders: what turns a sound file into samples, one file per library. They run in `svc.speech.decoder` alone."""
