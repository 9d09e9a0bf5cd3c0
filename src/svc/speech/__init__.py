"""Speech to text over a WebSocket and over an upload form. The models run in worker processes."""
