"""A checkpoint ready for use: images in, probabilities or features out.

classifier = vit_jax.load("B_16.npz")
probabilities = classifier.predict(["cat.jpg", "dog.png"])      # (2, 1000)
classifier.class_names[probabilities[0].argmax()]
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from jax import Array
from PIL import Image

from vit_jax import checkpoint, data, models
from vit_jax import labels as label_lists
from vit_jax.aliases import Json, Params, Size
from vit_jax.checkpoint.names import check_fit
from vit_jax.data.decode import read_image
from vit_jax.models.kinds import Shapes, grid_at
from vit_jax.preprocessing import FIELDS as PREPROCESSING_FIELDS
from vit_jax.preprocessing import Preprocessing, google_preprocessing

log = logging.getLogger(__name__)

# A path, an encoded file, a picture, or 8-bit values `h w c`.
RawImage = str | Path | bytes | Image.Image | np.ndarray | Array
Images = RawImage | Sequence[RawImage]


@dataclasses.dataclass(frozen=True, eq=False)
class Classifier:
    """A model with its weights and its card. `params` have the published names.

    Images are raw ones (see RawImage; one, or a list), which are prepared as the card says, or a
    float array `b h w c` that is prepared already. Any number of them runs in padded batches of one
    shape, so that the model compiles only once.
    """

    model: models.Model
    params: Params
    card: checkpoint.Card

    @property
    def class_names(self) -> list[str]:
        return list(self.card.class_names or map("class {}".format, range(self.card.num_classes)))

    @property
    def grid(self) -> Size:
        """Patches of the input, (height, width)."""
        assert self.card.grid is not None
        return self.card.grid

    @property
    def preprocessing(self) -> Preprocessing:
        assert self.card.preprocessing is not None
        return self.card.preprocessing

    @functools.cached_property
    def transform(self) -> Callable[..., np.ndarray]:
        """From one encoded file or 8-bit array to the model's input, float32 `h w c`."""
        return data.eval_transform(self.preprocessing)

    def preprocess(self, images: Images) -> np.ndarray:
        """The model's input, float32 `b h w c`, of one raw image or several."""
        if _is_prepared(images):
            return np.asarray(images, np.float32)
        return np.stack([self.transform(_raw(image)) for image in _as_list(images)])

    def predict(self, images: Images, *, batch_size: int = 32) -> np.ndarray:
        """Probabilities, `b k`; they sum to one unless an image may have several classes."""
        function = functools.partial(_probabilities, self.model, self.card.loss)
        return self._run(function, images, batch_size)

    def logits(self, images: Images, *, batch_size: int = 32) -> np.ndarray:
        """The scores before the softmax, `b k`."""
        return self._run(functools.partial(_logits, self.model), images, batch_size)

    def features(
        self, images: Images, *, per_patch: bool = False, batch_size: int = 32
    ) -> np.ndarray:
        """What the head sees, `b d`; or the last layer's token of each patch, `b h w d`."""
        if per_patch and getattr(self.model, "transformer", {}) is None:
            raise ValueError("The model has no transformer, so there are no features per patch.")
        function = _patch_features if per_patch else _pooled_features
        return self._run(functools.partial(function, self.model), images, batch_size)

    def _run(
        self, function: Callable[[Params, np.ndarray], Array], images: Images, batch_size: int
    ) -> np.ndarray:
        images = _as_list(images)
        if not len(images):
            raise ValueError("There is no image to look at.")
        results = [
            np.asarray(function(self.params, batch))[:count]
            for batch, count in self._batches(images, batch_size)
        ]
        return np.concatenate(results)

    def _batches(
        self, images: Sequence[RawImage], batch_size: int
    ) -> Iterator[tuple[np.ndarray, int]]:
        size = padded_size(len(images), batch_size)
        for start in range(0, len(images), size):
            batch = self.preprocess(images[start : start + size])
            yield pad(batch, size), len(batch)


def padded_size(count: int, most: int) -> int:
    """The size of the batches for `count` images: a power of two, or `most` if that is less."""
    return min(most, 1 << (count - 1).bit_length())


def pad(batch: np.ndarray, size: int) -> np.ndarray:
    """Zeros after the last row, up to `size` rows."""
    if len(batch) == size:
        return batch
    return np.pad(batch, [(0, size - len(batch)), *[(0, 0)] * (batch.ndim - 1)])


def _apply(model: models.Model, params: Params, images: Array) -> Array:
    outputs: Any = model.apply({"params": params}, images, train=False)
    return outputs


_logits = jax.jit(_apply, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _probabilities(model: models.Model, loss: str, params: Params, images: Array) -> Array:
    logits = _apply(model, params, images)
    return jax.nn.sigmoid(logits) if loss == "sigmoid" else jax.nn.softmax(logits)


@functools.partial(jax.jit, static_argnums=0)
def _pooled_features(model: models.Model, params: Params, images: Array) -> Array:
    return _apply(model.clone(num_classes=0), params, images)


@functools.partial(jax.jit, static_argnums=0)
def _patch_features(model: models.Model, params: Params, images: Array) -> Array:
    """After the last LayerNorm, if the model has it before pooling."""
    last = models.find_kind(model).tokens
    outputs: Any = model.apply(
        {"params": params},
        images,
        train=False,
        capture_intermediates=lambda module, _: module.name == last,
        mutable=["intermediates"],
    )
    state = outputs[1]["intermediates"]
    height, width = state["patch_embedding"].shape[1:3]
    tokens = state[last]["__call__"][0][:, -height * width :]  # class tokens come first
    return tokens.reshape(len(tokens), height, width, -1)


def load(
    path: epath.PathLike,
    *,
    model: str | None = None,
    labels: epath.PathLike | Sequence[str] | None = None,
    resolution: int | Sequence[int] | None = None,
    preprocessing: Json | None = None,
    **fields: Any,
) -> Classifier:
    """The checkpoint at a path (anything `checkpoint.open` takes), or with a name in the catalog.

    For a file that does not describe itself: `model` is a name in `models.MODEL_CONFIGS`, `labels`
    the class names or a file with one per line, `preprocessing` the fields of
    `vit_jax.preprocessing.Preprocessing` that differ from Google's. At a `resolution` other than
    the checkpoint's, the position grid is rescaled. `fields` say how the model is computed:
    dtype="bfloat16", attention_kernel=…, scan=….
    """
    size = _pair(resolution)
    with checkpoint.open(path) as found:
        card = _card(found, model)
        if size is not None and _may_be_of(size, card, found.shapes):
            card = card.at(size)
        card = _complete(card, path, labels, preprocessing)
        check_fit(found.shapes, card.parameter_shapes(), where=str(path))
        trained_at = card.grid
        card = _at(card, size) if size is not None else _at_its_crop(card, path)
        shapes = card.parameter_shapes()
        params = found.fit(
            checkpoint.recover_tree(list(shapes), list(shapes.values())),
            keep_head=True,
            grid=card.grid,
            pretrained_grid=trained_at,
        ).restore()
    return Classifier(card.model.clone(**fields), params, card)


def _card(found: checkpoint.Checkpoint, model: str | None) -> checkpoint.Card:
    """A checkpoint's card; an inferred one gets the fields of the published `model`."""
    card = found.card
    if card is None:
        raise ValueError(
            f"{found.path} does not describe itself, and its parameters fit none of our models."
        )
    if model is None:
        return card
    name, guess = models.find_model(model), models.guess_model(found.shapes)
    if guess not in (None, name):
        raise ValueError(f"{found.path} is a {guess}, not a {name}.")
    if not card.inferred:
        return card
    named = models.model_config(name).to_dict()
    if isinstance(card.model, models.VisionTransformer):
        named["representation_size"] = card.model.representation_size
    return dataclasses.replace(card, model=models.build_model(named, card.num_classes))


def _may_be_of(size: Size, card: checkpoint.Card, shapes: Shapes) -> bool:
    """Whether a checkpoint that does not say its resolution may have this one: 36 positions are
    taken for the 4×9 patches that are asked for, though they could be of 6×6.
    """
    if card.grid is None or not card.grid_is_guess:
        return card.grid is None
    wanted = (at := card.at(size)).parameter_shapes()
    may_be = {n: x.shape for n, x in wanted.items()} == {n: x.shape for n, x in shapes.items()}
    if may_be and at.grid not in (None, card.grid):
        log.warning("The positions are taken for those of a %d×%d grid, as asked for.", *at.grid)
    return may_be


def _complete(
    card: checkpoint.Card,
    path: epath.PathLike,
    labels: epath.PathLike | Sequence[str] | None,
    preprocessing: Json | None,
) -> checkpoint.Card:
    """The card with class names and preprocessing: those given, its own, or the usual ones."""
    if card.image_size is None:
        raise ValueError(
            f"{path} does not say at which resolution its model runs; give the resolution."
        )
    names = card.class_names
    if labels is not None:
        names = tuple(label_lists.read(labels, card.num_classes))
    elif names is None and (known := label_lists.imagenet(card.num_classes)):
        names = tuple(known[0])
    described = card.preprocessing or google_preprocessing(card.image_size, card.channels)
    if preprocessing:
        if unknown := ", ".join(sorted(preprocessing.keys() - PREPROCESSING_FIELDS.keys())):
            known = ", ".join(PREPROCESSING_FIELDS)
            raise ValueError(f"preprocessing has no field {unknown}; its fields are {known}.")
        try:
            described = Preprocessing.from_json({**described.to_json(), **preprocessing})
        except ValueError as e:
            raise ValueError(f"The preprocessing given for {path} is not valid: {e}.") from e
    return dataclasses.replace(card, class_names=names, preprocessing=described)


def _at(card: checkpoint.Card, size: Size) -> checkpoint.Card:
    if size != card.image_size and not models.find_kind(card.model).any_resolution:
        height, width = card.image_size or (0, 0)
        raise ValueError(
            f"The model runs at its own resolution only, {height}×{width}, not {size[0]}×{size[1]}."
        )
    return card.at(size)


def _at_its_crop(card: checkpoint.Card, path: epath.PathLike) -> checkpoint.Card:
    """The card for the images that its preprocessing makes, as in the library that it comes from:
    DINOv2 was trained at 518 px last, and its preprocessor crops to 224.
    """
    about, trained = card.preprocessing, card.image_size
    if about is None or trained is None or about.crop == trained:
        return card
    if not models.find_kind(card.model).any_resolution:
        log.warning("%s runs at %d×%d px, its only size.", path, *trained)
        return card.at(trained)
    grid, stride = grid_at(about.crop, card.model, floor=True), models.patch_stride(card.model)
    size = grid[0] * stride[0], grid[1] * stride[1]
    if not all(grid):
        raise ValueError(
            f"{path} has a preprocessor that crops to {about.crop[0]}×{about.crop[1]} px, less "
            f"than a patch of {stride[0]}×{stride[1]}; give a resolution, such as {trained[0]}."
        )
    if size != trained:
        log.warning(
            "%s runs at %d×%d px, as its preprocessor says; it was trained at %d×%d, which "
            "--resolution=%d,%d (resolution= in Python) gives.",
            *(path, *size, *trained, *trained),
        )
    return dataclasses.replace(card, grid=grid, preprocessing=dataclasses.replace(about, crop=size))


def _pair(resolution: int | Sequence[int] | None) -> Size | None:
    if resolution is None or isinstance(resolution, int):
        return None if resolution is None else (resolution, resolution)
    height, width = resolution
    return height, width


def _is_prepared(images: Images) -> bool:
    dtype = getattr(images, "dtype", object)
    return getattr(images, "ndim", 0) == 4 and np.issubdtype(dtype, np.floating)


def _as_list(images: Any) -> Sequence[RawImage]:
    """Several images as they are, one as a list of one."""
    alone = isinstance(images, str | Path | bytes | Image.Image)
    return [images] if alone or getattr(images, "ndim", 4) in (2, 3) else images


def _raw(image: RawImage) -> bytes | np.ndarray:
    """What the transform takes; a picture as its pixels, in colour where it has colours."""
    if isinstance(image, str | Path):
        return read_image(Path(image).expanduser())
    if isinstance(image, Image.Image):
        return np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))
    return image if isinstance(image, bytes) else np.asarray(image)
