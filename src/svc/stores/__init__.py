"""Where state lies: one seam per kind of state, one file per place."""
