"""Type aliases that several packages share. `Model`, any of our networks, is in vit_jax.models."""

from collections.abc import Mapping
from typing import Any

Size = tuple[int, int]  # height, width

# Nested by module, as published: Transformer, encoderblock_0, … The leaves are arrays, or what
# stands in for them: shapes, shardings, lazy arrays.
Params = Mapping[str, Any]

Json = dict[str, Any]  # an object of a JSON file
