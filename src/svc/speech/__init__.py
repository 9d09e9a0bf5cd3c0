"""Speech to text: a live socket and an upload form, over models that run in processes of their own."""
