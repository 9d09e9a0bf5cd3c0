"""Known vulnerabilities of the locked packages, according to pip-audit."""
