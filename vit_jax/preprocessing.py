"""What is done to an image before a model sees it in evaluation, as a value.

It travels in a checkpoint's card, so that predict and evaluate do what the model was trained for.
`vit_jax.data.eval_transform` makes the function that does it.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from vit_jax.aliases import Json, Size
from vit_jax.allowed import either, number, one_of, optional, several, switch, whole

INTERPOLATIONS = ("bilinear", "bilinear_antialias", "bicubic")  # the last two antialias
side = whole(1, 2**15)  # in pixels
pair = several(side, [2], "[height, width]")
side_or_pair = either(side, pair)
_counts = range(1, 2**10)
FIELDS = {
    "crop": pair,
    "resize": optional(side_or_pair),
    "interpolation": one_of(*INTERPOLATIONS),
    "mean": several(number(), _counts, "a list of numbers"),
    "std": several(number(above=0), _counts, "a list of numbers above 0"),
    "channels": whole(1, _counts[-1]),
    "exif": switch,
}


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

    def __post_init__(self):
        problems = [p for name in FIELDS for p in FIELDS[name].problem(name, getattr(self, name))]
        problems = problems or list(self._conflicts())
        if problems:
            raise ValueError("; ".join(problems))

    def _conflicts(self) -> Iterator[str]:
        """What is wrong with fields that are right on their own."""
        (height, width), resize = self.crop, self.resize
        if isinstance(resize, int) and resize < min(self.crop):
            yield f"resize is {resize}, less than the shorter side of the crop, {height}×{width}"
        if isinstance(resize, tuple) and (resize[0] < height or resize[1] < width):
            yield f"resize is {resize[0]}×{resize[1]}, less than the crop, {height}×{width}"
        num_means, num_stds = len(self.mean), len(self.std)
        differ = len({*self.mean}) > 1 or len({*self.std}) > 1  # else they may be for any channels
        if num_means != num_stds or (differ and num_means != self.channels):
            counts = f"mean has {num_means} numbers and std has {num_stds}"
            yield f"{counts} for {self.channels} channels"

    def to_json(self) -> Json:
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, given: Json, *, channels: int = 3) -> "Preprocessing":
        """Raises one ValueError with every problem, separated by semicolons."""
        values = dict.fromkeys(FIELDS) | {"channels": channels, "exif": False} | given
        fields: Json = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        return cls(**{name: fields[name] for name in FIELDS})

    def at(self, size: Size) -> "Preprocessing":
        """The same for images of another size; `resize` keeps its proportion to the crop."""
        resize, crop = self.resize, self.crop
        if isinstance(resize, int):
            resize = round(min(size) / min(crop) * resize)
        elif resize is not None:
            resize = round(resize[0] * size[0] / crop[0]), round(resize[1] * size[1] / crop[1])
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
