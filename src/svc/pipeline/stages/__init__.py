"""The kinds of stages, one module each. `base` defines the interface."""
