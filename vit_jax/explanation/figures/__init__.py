"""Arrays as matplotlib figures. Nothing here knows a model."""
