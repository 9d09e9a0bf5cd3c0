"""Known vulnerabilities of the locked packages, as pip-audit finds them."""
