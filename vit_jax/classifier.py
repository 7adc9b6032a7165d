"""A checkpoint ready for use: images in, probabilities or features out.

classifier = vit_jax.load("B_16.npz")
probabilities = classifier.predict(["cat.jpg", "dog.png"])      # (2, 1000)
classifier.class_names[probabilities[0].argmax()]
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
from etils import epath
from PIL import Image

from vit_jax import checkpoint, data, models
from vit_jax import labels as label_lists
from vit_jax.checkpoint import catalog
from vit_jax.checkpoint.card import google_preprocessing, parameter_shapes
from vit_jax.checkpoint.inspection import check_fit
from vit_jax.checkpoint.lazy import read_all
from vit_jax.checkpoint.transfer import GRID_CONVENTIONS
from vit_jax.preprocessing import Preprocessing

Size = tuple[int, int]
# A path, an encoded file, a picture, or 8-bit values `h w c`.
RawImage = str | Path | bytes | Image.Image | np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Classifier:
    """A model with its weights and its card. `params` have the published names.

    Images are given as raw ones (see RawImage; one, or a list), which are prepared as the card
    says, or as a float array `b h w c` that has been prepared already. Whatever their number, they
    run in padded batches of one shape, so the model compiles once and not for every number.
    """

    model: nn.Module
    params: Any
    card: checkpoint.Card

    @property
    def class_names(self) -> list[str]:
        names = self.card["class_names"]
        return names or [f"class {i}" for i in range(self.card["num_classes"])]

    @property
    def grid(self) -> Size:
        """Patches of the input, (height, width)."""
        return tuple(self.card["grid"])

    @functools.cached_property
    def transform(self) -> Callable[..., np.ndarray]:
        """From one encoded file or 8-bit array to the model's input, float32 `h w c`."""
        return data.eval_transform(Preprocessing.from_json(self.card["preprocessing"]))

    def preprocess(self, images: RawImage | Sequence[RawImage] | np.ndarray) -> np.ndarray:
        """The model's input, float32 `b h w c`, of one raw image or several."""
        if _is_prepared(images):
            return np.asarray(images, np.float32)
        return np.stack([self.transform(_raw(image)) for image in _listed(images)])

    def predict(self, images: Any, *, batch_size: int = 32) -> np.ndarray:
        """Probabilities, `b k`: of each class alone where the model was trained on several labels
        an image, else summing to one.
        """
        loss = self.card.get("data", {}).get("loss", "softmax")
        return self._run(functools.partial(_probabilities, self.model, loss), images, batch_size)

    def logits(self, images: Any, *, batch_size: int = 32) -> np.ndarray:
        """The scores before the softmax, `b k`."""
        return self._run(functools.partial(_logits, self.model), images, batch_size)

    def features(self, images: Any, *, per_patch: bool = False, batch_size: int = 32) -> np.ndarray:
        """What the head sees, `b d`; or the last layer's token of each patch, `b h w d`."""
        function = _patch_features if per_patch else _pooled_features
        return self._run(functools.partial(function, self.model), images, batch_size)

    def _run(self, function: Callable, images: Any, batch_size: int) -> np.ndarray:
        images = _listed(images)
        if not len(images):
            raise ValueError("There is no image to look at.")
        results = [
            np.asarray(function(self.params, batch))[:count]
            for batch, count in self._batches(images, batch_size)
        ]
        return np.concatenate(results)

    def _batches(self, images: Any, batch_size: int) -> Iterator[tuple[np.ndarray, int]]:
        size = padded_size(len(images), batch_size)
        for start in range(0, len(images), size):
            batch = self.preprocess(images[start : start + size])
            yield pad(batch, size), len(batch)


def padded_size(count: int, most: int) -> int:
    """The batch that `count` images run in: a power of two, `most` at most."""
    return min(most, 1 << (count - 1).bit_length())


def pad(batch: np.ndarray, size: int) -> np.ndarray:
    """Zeros after the last row, up to `size` rows."""
    if len(batch) == size:
        return batch
    return np.pad(batch, [(0, size - len(batch)), *[(0, 0)] * (batch.ndim - 1)])


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, params, images):
    return model.apply({"params": params}, images, train=False)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _probabilities(model, loss, params, images):
    logits = model.apply({"params": params}, images, train=False)
    return jax.nn.sigmoid(logits) if loss == "sigmoid" else jax.nn.softmax(logits)


@functools.partial(jax.jit, static_argnums=0)
def _pooled_features(model, params, images):
    return model.clone(num_classes=0).apply({"params": params}, images, train=False)


@functools.partial(jax.jit, static_argnums=0)
def _patch_features(model, params, images):
    """After the last LayerNorm, where the model has it before pooling."""
    last = "pre_head_layer_norm" if isinstance(model, models.MlpMixer) else "Transformer"
    _, state = model.apply(
        {"params": params},
        images,
        train=False,
        capture_intermediates=lambda module, _: module.name == last,
        mutable=["intermediates"],
    )
    state = state["intermediates"]
    height, width = state["patch_embedding"].shape[1:3]
    tokens = state[last]["__call__"][0][:, -height * width :]  # class tokens come first
    return tokens.reshape(len(tokens), height, width, -1)


def load(
    path: epath.PathLike,
    *,
    model: str | None = None,
    labels: epath.PathLike | Sequence[str] | None = None,
    resolution: int | Sequence[int] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Classifier:
    """The checkpoint at a path (anything `checkpoint.load` reads), or of a name in the catalog.

    For a file that does not describe itself: `model` is a name of `models.MODEL_CONFIGS`, `labels`
    the class names or a file with one a line, `preprocessing` what differs from Google's (see
    `checkpoint.card`). At another `resolution` than the checkpoint's, the position grid is
    rescaled. `fields` are how the model is computed: dtype="bfloat16", attention_kernel=…, scan=….
    """
    path = _fetched(path)
    with checkpoint.opened(path) as found:
        leaves = found.plan.leaves()
        flat = read_all(leaves, where=str(path))
    size = (resolution, resolution) if isinstance(resolution, int) else resolution
    card = found.card
    if card is None:
        raise ValueError(
            f"{path} does not describe itself, and its parameters are of no model of ours."
        )
    if model is not None:
        name, found_name = models.find_model(model), checkpoint.guess_model(leaves)
        if found_name not in (None, name):
            raise ValueError(f"{path} is a {found_name}, not a {name}.")
        if card["source"].startswith("inferred"):
            card = _card_of_model(name, card)
    if card["grid"] is None and size is not None:
        card = {**card, "grid": _grid_at(size, card), "image_size": list(size)}
    card = _complete(card, path, labels, preprocessing)
    check_fit(leaves, parameter_shapes(card), where=str(path))
    params = checkpoint.recover_tree(list(flat), list(flat.values()))
    if size is not None and list(size) != list(card["image_size"]):
        convention = GRID_CONVENTIONS.get(found.format, "google")
        params, card = _at_resolution(params, card, size, convention)
    params = jax.tree.map(jax.numpy.asarray, params)
    return Classifier(checkpoint.model_from_card(card, **fields), params, card)


def _fetched(path: epath.PathLike) -> epath.Path:
    local = epath.Path(path).expanduser()
    if local.exists():
        return local
    try:
        name = catalog.find(str(path)).name
    except ValueError as e:
        raise ValueError(f"There is no file or directory {path}. {e}") from e
    return epath.Path(catalog.fetch(name))


def _card_of_model(name: str, inferred: checkpoint.Card) -> checkpoint.Card:
    """The card of a published model with the head, grid and preprocessing that the file has."""
    fields = models.model_config(name).to_dict()
    if "representation_size" in fields:
        fields["representation_size"] = inferred["model"].get("representation_size")
    named = checkpoint.make_card(model=fields, num_classes=0, grid=None)
    return {**inferred, "model": named["model"]}


def _complete(card, path, labels, preprocessing) -> checkpoint.Card:
    """The card with names, sizes and preprocessing, from what was given where it lacks them."""
    if card["grid"] is None:
        raise ValueError(
            f"{path} does not say at what resolution its model runs; give the resolution."
        )
    names = card["class_names"]
    if labels is not None:
        names = label_lists.read(labels, card["num_classes"])
    elif names is None and (known := label_lists.imagenet(card["num_classes"])):
        names = known[0]
    described = card["preprocessing"] or google_preprocessing(card["image_size"], card["channels"])
    described = {"channels": card["channels"], "exif": False, **described, **(preprocessing or {})}
    card = {**card, "class_names": names, "preprocessing": described}
    checkpoint.check_card(card, where=f"The card of {path}")
    return card


def _at_resolution(
    params: Any, card: checkpoint.Card, size: Sequence[int], convention: str
) -> tuple[Any, checkpoint.Card]:
    """Parameters and card for images of another size, (height, width)."""
    if "num_blocks" in card["model"]:
        raise ValueError(
            f"A Mixer runs at its own resolution only, {card['image_size'][0]}×"
            f"{card['image_size'][1]}, not {size[0]}×{size[1]}."
        )
    grid = _grid_at(size, card)
    described = dict(card["preprocessing"])
    factor = min(size) / min(described["crop"])
    if isinstance(described["resize"], int):
        described["resize"] = round(factor * described["resize"])
    elif described["resize"]:
        described["resize"] = [
            round(side * new / old)
            for side, new, old in zip(described["resize"], size, described["crop"], strict=True)
        ]
    described["crop"] = list(size)
    resized = {**card, "image_size": list(size), "grid": grid, "preprocessing": described}
    wanted = flax.traverse_util.unflatten_dict(parameter_shapes(resized), sep="/")
    params = checkpoint.fit_params(
        params,
        wanted,
        representation_size=card["model"].get("representation_size"),
        keep_head=True,
        grid=tuple(grid),
        pretrained_grid=tuple(card["grid"]),
        convention=convention,
    )
    return params, resized


def _grid_at(size: Sequence[int], card: checkpoint.Card) -> list[int]:
    """The patches, (height, width), that an image of a size is cut into."""
    stride = checkpoint.patch_stride(card["model"])
    if any(side % step for side, step in zip(size, stride, strict=True)):
        near = [max(s, round(n / s) * s) for n, s in zip(size, stride, strict=True)]
        raise ValueError(
            f"A resolution of {size[0]}×{size[1]} cannot be cut into patches of {stride[0]}×"
            f"{stride[1]}; {near[0]}×{near[1]} can."
        )
    return [side // step for side, step in zip(size, stride, strict=True)]


def _is_prepared(images: Any) -> bool:
    return getattr(images, "ndim", 0) == 4 and np.issubdtype(images.dtype, np.floating)


def _listed(images: Any) -> Any:
    """Several images as they are, one as a list of one."""
    alone = isinstance(images, str | Path | bytes | Image.Image)
    return [images] if alone or getattr(images, "ndim", 4) in (2, 3) else images


def _raw(image: RawImage) -> bytes | np.ndarray:
    """What the transform takes; a picture as its pixels, in colour where it has colours."""
    if isinstance(image, str | Path):
        return Path(image).expanduser().read_bytes()
    if isinstance(image, Image.Image):
        return np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))
    return image if isinstance(image, bytes) else np.asarray(image)
