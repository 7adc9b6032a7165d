"""Models that run without vit_jax: StableHLO, ONNX, smaller weights, and the loader beside them."""
