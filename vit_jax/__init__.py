"""Vision Transformers in JAX.

classifier = vit_jax.load("runs/quickstart")
probabilities = classifier.predict(["cat.jpg", "dog.png"])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.classifier import Classifier, load

__all__ = ["Classifier", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports `load` and `Classifier` when they are first used: they need the data libraries."""
    if name in __all__:
        from vit_jax import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
