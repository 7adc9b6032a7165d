"""How good a model is: scores, calibration, confusion, and probes of its features."""
