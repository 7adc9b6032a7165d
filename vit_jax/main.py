"""`python -m vit_jax.main`, as users of google-research/vision_transformer call it; see
vit_jax.train.
"""

from vit_jax.train import run

if __name__ == "__main__":
    run()
