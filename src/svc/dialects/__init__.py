"""The API formats of providers: one package per dialect, with pure functions and small state machines. No I/O."""
