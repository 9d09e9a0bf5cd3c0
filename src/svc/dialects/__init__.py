"""How providers say it: one module per dialect, pure functions and small state machines, no I/O."""
