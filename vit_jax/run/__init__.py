"""A training run as a person meets it: its directory, log, curves and checkpoints."""
