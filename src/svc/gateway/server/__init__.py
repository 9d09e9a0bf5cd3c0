"""Client connections: HTTP parsing, authentication, responses, and the ASGI application behind them."""
