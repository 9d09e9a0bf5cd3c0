"""Voice engines, one module per library. tts.json names the engine.

def load(folder: Path, about: VoiceDescription) -> Engine     # Engine.say(text) -> (sample rate in Hz, 16-bit samples)
"""
