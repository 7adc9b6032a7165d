"""Official .npz files of every generation become one tree, through Orbax or without it."""

import re
import zipfile

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.training.checkpoints import convert_pre_linen
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as file_systems
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.reference import NAMES, golden, random_params
from vit_jax import checkpoint, models

flatten = flax.traverse_util.flatten_dict


def arrays(path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def linen_names(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same file as newer code would have saved it."""
    pairs = [("LayerNorm_2", "LayerNorm_1"), ("MlpBlock_3", "MlpBlock_0")]
    pairs.append(("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"))
    for old, new in pairs:
        flat = {name.replace(old, new): value for name, value in flat.items()}
    return flat


def assert_same_outputs(recorded, params):
    apply = jax.jit(lambda p, x: recorded.model().apply({"params": p}, x))
    np.testing.assert_allclose(apply(params, recorded.images), recorded.outputs, atol=1e-5)


def assert_trees_equal(a, b):
    a, b = flatten(a, sep="/"), flatten(b, sep="/")
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# Generations


def test_file_with_linen_numbers_gives_the_same_tree(tmp_path):
    recorded = golden("vit_token")
    np.savez(tmp_path / "new.npz", **linen_names(arrays(recorded.path)))
    assert_trees_equal(checkpoint.load(tmp_path / "new.npz"), recorded.params())


@pytest.mark.parametrize("prefix", ["params/", "opt/target/", "params/img/"])
def test_big_vision_file_with_prefix_root_positions_and_no_class_row(tmp_path, prefix):
    recorded = golden("vit_token")
    flat = linen_names(arrays(recorded.path))
    positions = flat.pop("Transformer/posembed_input/pos_embedding")
    flat["cls"] = flat["cls"] + positions[:, :1]  # what big_vision trains: the sum
    flat["pos_embedding"] = positions[:, 1:]
    flat = {prefix + name: value for name, value in flat.items()}
    flat |= {"opt/count": np.zeros(3), "params/txt/embedding": np.zeros(3)}
    np.savez(tmp_path / "big_vision.npz", **flat)
    assert_same_outputs(recorded, checkpoint.load(tmp_path / "big_vision.npz"))


def test_big_vision_file_with_positions_under_transformer(tmp_path):
    recorded = golden("vit_token")
    flat = linen_names(arrays(recorded.path))
    positions = flat.pop("Transformer/posembed_input/pos_embedding")
    flat["cls"] = flat["cls"] + positions[:, :1]
    for name in ("Transformer/pos_embedding", "Transformer/posembed_input/pos_embedding"):
        tree = {f"params/{n}": v for n, v in {**flat, name: positions[:, 1:]}.items()}
        np.savez(tmp_path / "file.npz", **tree)
        assert_same_outputs(recorded, checkpoint.load(tmp_path / "file.npz"))


def test_scanned_encoder_is_unstacked(tmp_path):
    recorded = golden("vit_gap")
    flat = linen_names(arrays(recorded.path))
    stacked = {}
    for name, value in flat.items():
        if match := re.match(r"Transformer/encoderblock_(\d+)/(.*)", name):
            stacked.setdefault(f"params/Transformer/encoderblock/{match[2]}", []).append(value)
        else:
            stacked[f"params/{name}"] = value
    stacked = {n: np.stack(v) if isinstance(v, list) else v for n, v in stacked.items()}
    np.savez(tmp_path / "scanned.npz", **stacked)
    assert_trees_equal(checkpoint.load(tmp_path / "scanned.npz"), recorded.params())


def test_map_head_keeps_its_names(tmp_path):
    model = models.get_model("testing", num_classes=3, classifier="map")
    params = random_params(model, jnp.ones((1, 32, 32, 3)))
    flat = {f"params/{n}": v for n, v in flatten(params, sep="/").items()}
    flat["params/pos_embedding"] = flat.pop("params/Transformer/posembed_input/pos_embedding")
    np.savez(tmp_path / "map.npz", **flat)
    assert_trees_equal(checkpoint.load(tmp_path / "map.npz"), params)


def test_bfloat16_arrays_are_read_as_such(tmp_path):
    recorded = golden("vit_token")
    half = {n: np.asarray(v, jnp.bfloat16) for n, v in arrays(recorded.path).items()}
    np.savez(tmp_path / "half.npz", **half)
    params = checkpoint.load(tmp_path / "half.npz")
    assert params["head"]["kernel"].dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.float32(params["head"]["kernel"]), recorded.params()["head"]["kernel"], rtol=1e-2
    )


# Writing


@pytest.mark.parametrize("name", NAMES)
def test_saving_gives_back_the_official_file_bit_for_bit(tmp_path, name):
    recorded = golden(name)
    checkpoint.save(recorded.params(), tmp_path / "again.npz")
    theirs, ours = arrays(recorded.path), arrays(tmp_path / "again.npz")
    assert set(theirs) == set(ours)
    for key in theirs:
        np.testing.assert_array_equal(theirs[key].ravel(), ours[key].ravel())


@pytest.mark.parametrize("name", NAMES)
def test_saved_file_is_read_by_the_references_own_loader(tmp_path, name):
    """Its loader: np.load, recover_tree, flax's convert_pre_linen, GroupNorm squeezed."""
    params = golden(name).params()
    checkpoint.save(params, tmp_path / "file.npz")
    keys, values = zip(*arrays(tmp_path / "file.npz").items(), strict=True)
    theirs = flatten(convert_pre_linen(checkpoint.recover_tree(keys, values)), sep="/")
    theirs = {n: v.squeeze() if re.search(r"gn[^/]*/", n) else v for n, v in theirs.items()}
    assert_trees_equal(flax.traverse_util.unflatten_dict(theirs, sep="/"), params)


def test_non_square_positions_survive_a_round_trip(tmp_path):
    """15 patches and a class token are 16 rows: a square number that is not a grid."""
    model = models.get_model("testing", num_classes=3)
    params = random_params(model, jnp.ones((1, 48, 80, 3)))
    checkpoint.save(params, tmp_path / "file.npz")
    assert_trees_equal(checkpoint.load(tmp_path / "file.npz"), params)


def test_failed_save_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.npz"
    params = golden("vit_token").params()
    checkpoint.save(params, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="pickle"):
        checkpoint.save({**params, "zzz": np.array([object()])}, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# Orbax


def restore(path, target=None):
    with checkpoint.OfficialCheckpointer() as checkpointer:
        return checkpointer.restore(path, args=checkpoint.OfficialRestore(target))


def test_orbax_restores_an_official_file_as_numpy():
    recorded = golden("vit_token")
    assert_trees_equal(restore(recorded.path), recorded.params())


def test_orbax_restore_obeys_dtype_and_sharding():
    recorded = golden("vit_token")
    mesh = Mesh(np.array(jax.devices()[:4]), ("model",))

    def describe(x):
        spec = PartitionSpec(*[None] * (x.ndim - 1), "model" if x.shape[-1] % 4 == 0 else None)
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=sharding)

    target = jax.tree.map(describe, recorded.params())
    params = restore(recorded.path, target)
    shards = params["embedding"]["kernel"].addressable_shards
    assert [shard.data.shape for shard in shards] == [(4, 4, 3, 8)] * 4
    trees = (jax.tree.leaves(tree) for tree in (params, target, recorded.params()))
    for leaf, wanted, expected in zip(*trees, strict=True):
        assert leaf.dtype == jnp.bfloat16
        assert leaf.sharding == wanted.sharding
        np.testing.assert_array_equal(leaf, expected.astype(jnp.bfloat16))


def test_orbax_saves_and_restores_through_the_handler(tmp_path):
    params = golden("hybrid").params()
    with checkpoint.OfficialCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", args=checkpoint.OfficialSave(params))
        metadata = checkpointer.metadata(tmp_path / "step").item_metadata
    assert_trees_equal(restore(tmp_path / "step"), params)
    assert_trees_equal(checkpoint.load(tmp_path / "step"), params)
    assert jax.tree.map(jnp.shape, metadata) == jax.tree.map(jnp.shape, params)


def test_orbax_restore_with_the_wrong_target_names_every_difference():
    recorded = golden("vit_token")
    model = recorded.model(hidden_size=48, classifier="gap")
    target = jax.eval_shape(model.init, jax.random.key(0), recorded.images)["params"]
    with pytest.raises(ValueError) as error:
        restore(recorded.path, target)
    message = str(error.value)
    assert "the model has no cls" in message
    assert "embedding/kernel: (4, 4, 3, 32) in the checkpoint, (4, 4, 3, 48) in" in message


@pytest.mark.parametrize("layout", ["published", "stacked"])
def test_orbax_directories_load_with_published_names(tmp_path, layout):
    params = golden("vit_token").params()
    tree = models.stack_blocks(params) if layout == "stacked" else params
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", jax.tree.map(jnp.asarray, tree))
    assert_trees_equal(checkpoint.load(tmp_path / "orbax"), params)


# Remote


def test_remote_paths_are_read_and_written_through_fsspec(monkeypatch):
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    params = golden("vit_token").params()
    checkpoint.save(params, "s3://bucket/models/file.npz")
    assert_trees_equal(checkpoint.load("s3://bucket/models/file.npz"), params)
    assert_trees_equal(restore("s3://bucket/models/file.npz"), params)


def test_an_orbax_directory_on_s3_is_refused_and_leaves_nothing_here(monkeypatch, tmp_path):
    """Orbax takes s3://bucket for a local directory named `s3:`, if it gets to see it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(file_systems, "s3", MemoryFileSystem)
    with pytest.raises(ValueError, match=r"not to s3://bucket/model; write an .npz there"):
        checkpoint.convert(golden("vit_token").path, "s3://bucket/model", to="orbax")
    assert list(tmp_path.iterdir()) == []


# Bad input


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*nowhere.npz"):
        checkpoint.load(tmp_path / "nowhere.npz")


def test_empty_file(tmp_path):
    (tmp_path / "empty.npz").touch()
    with pytest.raises(ValueError, match=r"empty.npz \(0 bytes\) is not a readable .* is empty"):
        checkpoint.load(tmp_path / "empty.npz")


def test_garbage(tmp_path):
    (tmp_path / "garbage.npz").write_bytes(b"<html>403 Forbidden</html>")
    with pytest.raises(ValueError, match=r"garbage.npz \(26 bytes\) is not a readable .npz"):
        checkpoint.load(tmp_path / "garbage.npz")


def test_truncated_file(tmp_path):
    whole = golden("vit_token").path.read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="may be cut short"):
        checkpoint.load(tmp_path / "cut.npz")


def test_flipped_bits_are_noticed(tmp_path):
    data = bytearray(golden("vit_token").path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"is damaged: its array '.*' cannot be read"):
        checkpoint.load(tmp_path / "flipped.npz")


def test_pickled_array_is_refused_and_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    np.savez(tmp_path / "bomb.npz", kernel=np.ones(3), bomb=np.array([Bomb()], object))
    with pytest.raises(ValueError, match=r"pickled Python objects in 'bomb'.* refused"):
        checkpoint.load(tmp_path / "bomb.npz")


def test_zip_without_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.npz", "w") as file:
        file.writestr("photo.jpg", b"...")
    with pytest.raises(ValueError, match="a zip file without any arrays"):
        checkpoint.load(tmp_path / "photos.npz")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    flat = arrays(golden("vit_token").path)
    flat["head/kernel"][0, 0] = value
    np.savez(tmp_path / "diverged.npz", **flat)
    with pytest.raises(ValueError, match="NaN or infinite weights in head/kernel"):
        checkpoint.load(tmp_path / "diverged.npz")


def test_directory_without_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="a directory without a checkpoint"):
        checkpoint.load(tmp_path)
