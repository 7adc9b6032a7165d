"""What is inside a model, as arrays. Nothing here draws."""
