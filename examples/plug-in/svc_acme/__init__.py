"""A plug-in of svc for the fictitious provider Acme."""
