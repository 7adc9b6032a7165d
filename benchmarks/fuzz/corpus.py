"""What was found once, tried again: files kept in tests/fuzz_corpus.

    images/NAME
    WHAT/SEED/FILE/NAME    content for a FILE of a seed

WHAT is `damaged` (right numbers or none), `crafted` (its checksums agree) or `cards` (its JSON).
"""

import functools
from pathlib import Path

from benchmarks.fuzz import checkpoints, images, seeds
from benchmarks.fuzz.trial import Trial


def again(file: Path, corpus: Path, good: Path, room: Path) -> Trial:
    """The trial of a file of the corpus."""
    content, (what, *names) = file.read_bytes(), file.relative_to(corpus).parent.parts
    if what == "images":
        return Trial(file.name, functools.partial(images.prepare_all, content))
    name, inner = names[0], "/".join(names[1:])
    files = seeds.read(good).checkpoints[name]
    known = checkpoints.arrays(seeds.read(good), name)
    if what == "cards":
        content = checkpoints.with_description(inner, files[inner], content)
    path = checkpoints.write(name, {**files, inner: content}, room)
    if what == "cards":
        return Trial(file.name, functools.partial(checkpoints.describe, path, known))
    numbers = [known] if what == "damaged" else []
    return Trial(
        file.name, functools.partial(checkpoints.open_and, path, numbers, checkpoints.load)
    )
