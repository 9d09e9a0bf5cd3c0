"""Recognition engines, one module per library. A model's description names its engine."""
