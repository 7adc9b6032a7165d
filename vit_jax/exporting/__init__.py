"""A model that runs without vit_jax: StableHLO, ONNX, smaller weights, the loader."""
