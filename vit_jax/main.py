"""`python -m vit_jax.main` is `vit_jax.train` by its name in google-research/vision_transformer."""

import runpy

if __name__ == "__main__":
    runpy.run_module("vit_jax.train", run_name="__main__", alter_sys=True)
