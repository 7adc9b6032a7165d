"""Devices: how the one train step is mapped onto them, and how several hosts work together."""
