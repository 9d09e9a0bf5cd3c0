"""Define the default gateway URL of clients."""

PRODUCTION_GATEWAY = "https://api.svc.example/v1"
"""A reserved name (RFC 2606), so that keys are never sent to a third party. Operators replace it in their builds."""
