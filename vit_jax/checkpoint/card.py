"""The card: a checkpoint's description of itself. With it, a path is all that a command needs.

As JSON:

    {"format": 1, "model": {…fields of the model…}, "num_classes": 1000, "class_names": […] or null,
     "image_size": [h, w], "grid": [h, w], "channels": 3, "preprocessing": {…} or null,
     "source": "…", "versions": {…}, "metrics": {…}, "data": {…}}
"""

import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax import models
from vit_jax.aliases import Json, Size
from vit_jax.models import kinds
from vit_jax.models.kinds import Shapes
from vit_jax.preprocessing import Preprocessing, google_preprocessing, is_size

FORMAT = 1
_REQUIRED = (
    *("model", "num_classes", "class_names", "image_size", "grid", "channels"),
    *("preprocessing", "source", "versions", "metrics"),
)
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
    `inferred` marks a card made from shapes alone, which cannot show everything. `data`, written by
    our own training only, holds the options of `config.DATA_SET` that it was trained with.
    """

    model: models.Model
    grid: Size | None = None
    channels: int = 3
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    source: str = ""
    inferred: bool = False
    metrics: Json = dataclasses.field(default_factory=dict)
    data: Json = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=_versions)

    def __post_init__(self):
        names = self.class_names
        if names is not None and len(names) != self.num_classes:
            raise ValueError(f"there are {len(names)} class names for {self.num_classes} classes")

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
        card |= {"inferred": True} if self.inferred else {}
        card |= {"data": self.data} if self.data else {}
        return json.dumps(card, default=_plain)

    @classmethod
    def loads(cls, text: str, *, where: str) -> "Card":
        try:
            given = json.loads(text)
        except ValueError as e:
            raise ValueError(f"{where} is not readable JSON ({e}).") from e
        return cls.from_json(given, where=where)

    @classmethod
    def from_json(cls, given: object, *, where: str = "The card") -> "Card":
        """Raises one ValueError with everything that is wrong with it."""
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise ValueError(f"{where} is not a card: {kind} instead of a JSON object.")
        if given.get("format") != FORMAT:
            raise ValueError(
                f"{where} has format {given.get('format')!r}, and this vit_jax reads format "
                f"{FORMAT}. A newer vit_jax may have written it; upgrade, or convert it there."
            )
        problems = [f"{key!r} is missing" for key in _REQUIRED if key not in given]
        num_classes, channels = given.get("num_classes"), given.get("channels", 3)
        if not isinstance(num_classes, int) or num_classes < 0:
            problems.append(f"num_classes is {num_classes!r}, not a count")
        names = given.get("class_names")
        if names is not None and not isinstance(names, list):
            problems.append(f"class_names is {names!r}, not a list")
        elif names is not None and len(names) != num_classes:
            problems.append(f"there are {len(names)} class names for {num_classes} classes")
        for key in ("image_size", "grid"):
            if given.get(key) is not None and not is_size(given[key]):
                problems.append(f"{key} is {given[key]!r}, not [height, width]")
        preprocessing = given.get("preprocessing")
        if preprocessing is not None:
            try:
                preprocessing = Preprocessing.from_json(preprocessing, channels=channels)
            except ValueError as e:
                problems.append(str(e))
        if not problems:
            source = str(given["source"])
            try:
                return cls(
                    model=models.build_model(given["model"], num_classes),
                    grid=tuple(given["grid"]) if given["grid"] is not None else None,
                    channels=channels,
                    class_names=tuple(names) if names is not None else None,
                    preprocessing=preprocessing,
                    source=source,
                    inferred=bool(given.get("inferred", source.startswith(_INFERRED))),
                    metrics=given["metrics"],
                    data=given.get("data") or {},
                    versions=given["versions"],
                )
            except (TypeError, ValueError, KeyError) as e:
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
    model = models.build_model(found.fields, num_classes)
    grid = kinds.grid_at(image_size, model, floor=True) if image_size is not None else found.grid
    card = Card(model, grid, found.channels, source=f"{_INFERRED}{source}", inferred=True)
    if card.image_size is None:
        return card
    preprocessing = google_preprocessing(card.image_size, card.channels)
    return dataclasses.replace(card, preprocessing=preprocessing)


def _plain(value: Any) -> object:
    """What JSON does not know, in its own types."""
    return dict(value) if isinstance(value, Mapping) else value.item()
