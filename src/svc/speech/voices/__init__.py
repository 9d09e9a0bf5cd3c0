"""Voice engines, one module per library. tts.json names the engine.

def load(folder: Path, about: VoiceDescription) -> VoiceEngine     # see svc.speech.synthesis.voice
"""
