"""Vision Transformers in JAX.

classifier = vit_jax.load("runs/quickstart")
probabilities = classifier.predict(["cat.jpg", "dog.png"])
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`load` and `Classifier` bring in the data libraries, so they wait to be asked for."""
    if name in ("load", "Classifier"):
        from vit_jax import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
