"""The card: a checkpoint's description of itself. With it, a path is all that a command needs.

As JSON:

    {"format": 1, "model": {…fields of the model…}, "num_classes": 1000, "class_names": […] or null,
     "image_size": [h, w], "grid": [h, w], "channels": 3, "preprocessing": {…} or null,
     "source": "…", "versions": {…}, "metrics": {…}, "data": {…}, "architecture": "…"}
"""

import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax import models
from vit_jax.aliases import Json, Size
from vit_jax.allowed import Allowed, optional, switch, text, whole
from vit_jax.models import kinds
from vit_jax.models.kinds import Shapes
from vit_jax.preprocessing import Preprocessing, google_preprocessing, pair
from vit_jax.untrusted import fields, names, parse_json

FORMAT = 1
_REQUIRED: dict[str, Allowed] = {
    "model": fields,
    "num_classes": whole(0, 2**24),
    "class_names": optional(names),
    "image_size": optional(pair),
    "grid": optional(pair),
    "channels": whole(1, 2**10),
    "preprocessing": optional(fields),
    "source": text,
    "versions": fields,
    "metrics": fields,
}
_OPTIONAL: dict[str, Allowed] = {"inferred": switch, "architecture": text, "data": fields}
_INFERRED = "inferred from the shapes in "  # marks cards older than the field `inferred`


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in ("vit_jax", "jax", "flax"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


@dataclasses.dataclass(frozen=True)
class Card:
    """`model` is the network itself, a linen module, as it was trained; `card.model.clone(…)`
    changes how it is computed.

    `grid` is the (height, width) in patches that it was trained at, None if that is not known.
    `architecture` is the name of the model in the library that it came from, if that gave it one.
    `inferred` marks a card made from shapes alone, which cannot show everything. `data`, written by
    our own training only, holds the options of `config.DATA_SET` that it was trained with.
    """

    model: models.Model
    grid: Size | None = None
    channels: int = 3
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    source: str = ""
    architecture: str = ""
    inferred: bool = False
    metrics: Json = dataclasses.field(default_factory=dict)
    data: Json = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=_versions)

    def __post_init__(self):
        names = self.class_names
        if names is not None and len(names) != self.num_classes:
            raise ValueError(f"there are {len(names)} class names for {self.num_classes} classes")
        prepared = self.preprocessing.channels if self.preprocessing else self.channels
        if prepared != self.channels:
            raise ValueError(f"images of {prepared} channels are for a model of {self.channels}")

    @property
    def num_classes(self) -> int:
        return self.model.num_classes or 0

    @property
    def image_size(self) -> Size | None:
        """Pixels of the images it was trained at, (height, width)."""
        if self.grid is None:
            return None
        height, width = kinds.patch_stride(self.model)
        return self.grid[0] * height, self.grid[1] * width

    @property
    def grid_is_guess(self) -> bool:
        """Whether nothing but a square number of positions shows the grid."""
        return self.inferred and self.grid is not None and self.grid[0] == self.grid[1]

    @property
    def loss(self) -> str:
        """`sigmoid` if an image may have several classes, else `softmax`."""
        return self.data.get("loss", "softmax")

    def parameter_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Flat name to shape of every parameter of the model."""
        return kinds.parameter_shapes(self.model, self.image_size, self.channels)

    def at(self, size: Size) -> "Card":
        """The card for images of another size, (height, width)."""
        preprocessing = self.preprocessing.at(size) if self.preprocessing else None
        grid = kinds.grid_at(size, self.model)
        return dataclasses.replace(self, grid=grid, preprocessing=preprocessing)

    def to_json(self) -> Json:
        return json.loads(self.dumps())

    def dumps(self) -> str:
        card: Json = {
            "format": FORMAT,
            "model": models.model_fields(self.model),
            "num_classes": self.num_classes,
            "class_names": self.class_names,
            "image_size": self.image_size,
            "grid": self.grid,
            "channels": self.channels,
            "preprocessing": self.preprocessing.to_json() if self.preprocessing else None,
            "source": self.source,
            "versions": self.versions,
            "metrics": self.metrics,
        }
        card |= {"architecture": self.architecture} if self.architecture else {}
        card |= {"inferred": True} if self.inferred else {}
        card |= {"data": self.data} if self.data else {}
        return json.dumps(card, default=_plain)

    @classmethod
    def loads(cls, text: str, *, where: str) -> "Card":
        return cls.from_json(parse_json(text, where=where), where=where)

    @classmethod
    def from_json(cls, given: Json, *, where: str = "The card") -> "Card":
        """Raises one ValueError with everything that is wrong with it."""
        if given.get("format") != FORMAT:
            raise ValueError(
                f"{where} has format {given.get('format')!r}, and this vit_jax reads format "
                f"{FORMAT}. A newer vit_jax may have written it; upgrade, or convert it there."
            )
        problems = [f"{name!r} is missing" for name in _REQUIRED if name not in given]
        for name, allowed in (_REQUIRED | _OPTIONAL).items():
            if name in given:
                problems += allowed.problem(name, given[name])
        preprocessing, labels = None, given.get("class_names")
        if isinstance(labels, list) and len(labels) != given.get("num_classes"):
            problems.append(
                f"there are {len(labels)} class names for {given.get('num_classes')} classes"
            )
        if isinstance(about := given.get("preprocessing"), dict):
            try:
                channels = given.get("channels", 3)
                preprocessing = Preprocessing.from_json(about, channels=channels)
            except ValueError as e:
                problems.append(str(e))
        if not problems:
            described = {k: v for k, v in given["model"].items() if k not in kinds.HOW_COMPUTED}
            try:
                return cls(
                    model=models.build_model(described, given["num_classes"]),
                    grid=tuple(given["grid"]) if given["grid"] is not None else None,
                    channels=given["channels"],
                    class_names=tuple(labels) if labels is not None else None,
                    preprocessing=preprocessing,
                    source=given["source"],
                    architecture=given.get("architecture", ""),
                    inferred=given.get("inferred", given["source"].startswith(_INFERRED)),
                    metrics=given["metrics"],
                    data=given.get("data", {}),
                    versions=given["versions"],
                )
            except ValueError as e:
                problems.append(f"its model cannot be built ({e})")
        raise ValueError(f"{where} is not a valid card: {'; '.join(problems)}.")


def infer_card(shapes: Shapes, *, source: str, image_size: Size | None = None) -> Card | None:
    """A card for parameters that came without one; None if they are not those of our models.

    What shapes do not show is assumed to be as in Google's published models. A grid that is not
    square needs the `image_size`.
    """
    found = kinds.recognise(shapes)
    if found is None:
        return None
    num_classes = shapes["head/kernel"].shape[-1] if "head/kernel" in shapes else 0
    name = {"model_name": models.guess_model(shapes)}
    model = models.build_model({**found.fields, **name}, num_classes)
    grid = kinds.grid_at(image_size, model, floor=True) if image_size is not None else found.grid
    card = Card(model, grid, found.channels, source=f"{_INFERRED}{source}", inferred=True)
    if card.image_size is None:
        return card
    preprocessing = google_preprocessing(card.image_size, card.channels)
    return dataclasses.replace(card, preprocessing=preprocessing)


def _plain(value: Any) -> object:
    """What JSON does not know, in its own types."""
    return dict(value) if isinstance(value, Mapping) else value.item()
