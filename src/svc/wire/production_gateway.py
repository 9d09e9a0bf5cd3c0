"""Where the production gateway is: the address that clients end with when nothing names another."""

PRODUCTION_GATEWAY = "https://api.svc.example/v1"
"""A reserved name, so that no key ever goes to a stranger; whoever deploys a gateway changes it here."""
