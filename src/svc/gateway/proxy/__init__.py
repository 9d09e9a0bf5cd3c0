"""The life of one request: attempts, retries, hedging, streaming, and its accounting."""
