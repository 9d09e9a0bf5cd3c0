"""HTTP endpoints of the gateway, one file each."""
