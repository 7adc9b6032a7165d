"""What is done to an image before a model sees it in evaluation, as a value.

It travels in a checkpoint's card, so that predict and evaluate do what the model was trained for.
`vit_jax.data.eval_transform` makes the function that does it.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from vit_jax.aliases import Json, Size

INTERPOLATIONS = ("bilinear", "bilinear_antialias", "bicubic")  # the last two antialias


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Resize, crop the centre, then (value / 255 - mean) / std for each channel.

    `resize` is the length of the shorter side before the crop, or an exact (height, width), or None
    to resize straight to the crop. `exif` first turns photographs upright by their EXIF tag.
    """

    crop: Size
    resize: int | Size | None
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    exif: bool = False

    def to_json(self) -> Json:
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, given: object, *, channels: int = 3) -> "Preprocessing":
        """Raises one ValueError with every problem, separated by semicolons."""
        if not isinstance(given, Mapping):
            raise ValueError(f"preprocessing is {given!r}, not a JSON object")
        problems: list[str] = []
        if given.get("interpolation") not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            problems.append(f"interpolation is {given.get('interpolation')!r}, not one of {known}")
        if not is_size(given.get("crop")):
            problems.append(f"crop is {given.get('crop')!r}, not [height, width]")
        resize = given.get("resize")
        if resize is not None and not is_size(resize) and not _is_count(resize):
            problems.append(f"resize is {resize!r}, neither a side nor [height, width]")
        for key in ("mean", "std"):
            if not _are_numbers(given.get(key)):
                problems.append(f"{key} is {given.get(key)!r}, not a list of numbers")
        if not _is_count(given.get("channels", channels)):
            problems.append(f"channels is {given.get('channels')!r}, not a count")
        if problems:
            raise ValueError("; ".join(problems))
        return cls(
            crop=tuple(given["crop"]),
            resize=tuple(resize) if isinstance(resize, list | tuple) else resize,
            interpolation=given["interpolation"],
            mean=tuple(given["mean"]),
            std=tuple(given["std"]),
            channels=given.get("channels", channels),
            exif=bool(given.get("exif", False)),
        )

    def at(self, size: Size) -> "Preprocessing":
        """The same for images of another size; `resize` keeps its proportion to the crop."""
        resize = self.resize
        if isinstance(resize, int):
            resize = round(min(size) / min(self.crop) * resize)
        elif resize is not None:
            resize = (
                round(resize[0] * size[0] / self.crop[0]),
                round(resize[1] * size[1] / self.crop[1]),
            )
        return dataclasses.replace(self, crop=size, resize=resize)


def google_preprocessing(size: Sequence[int], channels: int = 3) -> Preprocessing:
    """As big_vision evaluates its published models: shorter side resized to 8/7 of the crop (256
    for 224) with antialiasing, centre cropped, values in [-1, 1].
    """
    return Preprocessing(
        crop=(size[0], size[1]),
        resize=round(min(size) * 8 / 7),
        interpolation="bilinear_antialias",
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        channels=channels,
    )


def is_size(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_count, value))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_numbers(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(v, int | float) for v in values)
