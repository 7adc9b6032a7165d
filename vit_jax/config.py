"""Every option once, with its default and a line of meaning. Recipes start from `default_config()`.

An option that is not in this table does not exist; an option in this table is read somewhere.
"""

from typing import Any, NamedTuple

import ml_collections


class Option(NamedTuple):
    default: Any
    meaning: str


DATA = {
    "dataset": Option(
        "digits", "a tfds name, a folder of images, a CSV/TSV of path,label, or 'digits' (built in)"
    ),
}

OPTIONS: dict[str, Option] = {**DATA}


def default_config() -> ml_collections.ConfigDict:
    """All options at their defaults; a dotted name is a nested field."""
    config = ml_collections.ConfigDict()
    for name, option in OPTIONS.items():
        *groups, leaf = name.split(".")
        node = config
        for group in groups:
            node = node.setdefault(group, ml_collections.ConfigDict())
        node[leaf] = option.default
    return config
