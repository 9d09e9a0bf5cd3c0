"""The composition root: settings become services, and services become running servers."""
