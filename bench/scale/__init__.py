"""A model of how much of everything a load needs, calibrated by measurements of this repository."""
