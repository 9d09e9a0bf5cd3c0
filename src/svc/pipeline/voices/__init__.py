"""Engines that speak: what turns a sentence into samples, one file per library, found by the name in tts.json.

def load(folder: Path, about: Description) -> Engine     # Engine.say(text) -> (samples per second, 16-bit samples)
"""
