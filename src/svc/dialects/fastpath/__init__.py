"""Fast paths for chunks and bodies that resemble earlier ones."""
