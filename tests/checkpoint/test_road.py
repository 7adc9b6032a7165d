"""One road for weights: headers first, each array once, straight onto where it lives."""

import collections
import dataclasses

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.reference import golden, random_params
from tests.run.test_train import load_recipe
from vit_jax import checkpoint, models
from vit_jax.checkpoint import opening, orbax_directory
from vit_jax.checkpoint.fit import Fitted
from vit_jax.checkpoint.lazy import Lazy, from_array, local_part, stacked, unstacked
from vit_jax.checkpoint.npz import Archive
from vit_jax.checkpoint.plan import Mapped, Plan
from vit_jax.parallel.mesh import arrange, bytes_per_device, state_shardings
from vit_jax.train import train_and_evaluate


@pytest.fixture
def reads(monkeypatch):
    """How often each array is read, and the bytes of them, in .npz files and Orbax directories."""
    counted = collections.Counter()

    def counting(name, read):
        def counted_read(*args):
            array = read(*args)
            if not isinstance(array, Lazy):
                counted[name or args[1]] += 1
                counted["bytes"] += array.nbytes
            return array

        return counted_read

    make = orbax_directory._arrays

    def arrays(path):
        flat = flax.traverse_util.flatten_dict(make(path), sep=".")
        loads = {name: counting(name, lazy.load) for name, lazy in flat.items()}
        counted = {n: dataclasses.replace(lazy, load=loads[n]) for n, lazy in flat.items()}
        return flax.traverse_util.unflatten_dict(counted, sep=".")

    monkeypatch.setattr(Archive, "read", counting(None, Archive.read))
    monkeypatch.setattr(orbax_directory, "_arrays", arrays)
    return counted


@pytest.fixture
def opened(monkeypatch):
    """The paths that are opened."""
    paths, recognise = [], opening.formats.recognise
    monkeypatch.setattr(
        opening.formats, "recognise", lambda path: paths.append(str(path)) or recognise(path)
    )
    return paths


def small(scan=False):
    config = load_recipe()
    config.model.scan = scan
    config.model.transformer.num_layers = 3
    config.total_steps = 1
    config.eval_every = config.checkpoint_every = 0
    config.compilation_cache = ""
    return config


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The same parameters as a file, an Orbax directory and a workdir of a run."""
    folder = tmp_path_factory.mktemp("weights")
    train_and_evaluate(small(), folder / "run")
    checkpoint.convert(folder / "run" / "model.npz", folder / "orbax", to="orbax")
    return {"npz": folder / "run" / "model.npz", "orbax": folder / "orbax", "run": folder / "run"}


@pytest.mark.parametrize(
    ("kind", "scan"), [("npz", False), ("npz", True), ("orbax", False), ("run", True)]
)
def test_a_run_opens_its_pretrained_weights_once_and_reads_each_array_once(
    kind, scan, weights, reads, opened, tmp_path
):
    config = small(scan)
    config.pretrained = str(weights[kind])
    with checkpoint.open(weights[kind]) as found:
        shapes = found.shapes
    opened.clear()
    train_and_evaluate(config, tmp_path / "run")
    assert opened == [str(weights[kind])]
    needed = sum(
        int(np.prod(leaf.shape)) * 4 for name, leaf in shapes.items() if "head/" not in name
    )
    assert reads.pop("bytes") == needed  # the head is fresh, so it is not even read
    assert set(reads.values()) == {1}
    assert len(reads) == len(shapes) - 2


def test_a_stacked_file_is_read_once_for_an_unrolled_model(reads, tmp_path):
    """Rows of one array, taken in turn: the array is read for the first, and kept for the rest."""
    model = models.get_model("testing", num_classes=3, transformer={"num_layers": 4})
    params = random_params(model, jnp.ones((1, 32, 32, 3)))
    flat = flax.traverse_util.flatten_dict(models.stack_blocks(params), sep="/")
    np.savez(tmp_path / "stacked.npz", **flat)
    loaded = checkpoint.load(tmp_path / "stacked.npz")
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    del reads["bytes"]
    assert set(reads.values()) == {1}


def test_headers_alone_tell_card_format_and_shapes(reads, weights):
    for kind, path in weights.items():
        with checkpoint.open(path) as found:
            assert found.format == kind
            assert found.card.class_names == tuple("0123456789")
            assert found.shapes["head/kernel"].shape == (32, 10)
    assert not reads


def test_relative_paths_of_orbax_directories_and_runs(weights, monkeypatch):
    monkeypatch.chdir(weights["run"].parent)
    expected = checkpoint.load(weights["npz"])
    for path in ("orbax", "run", "./run/checkpoints/1"):
        jax.tree.map(np.testing.assert_array_equal, checkpoint.load(path), expected)


def test_only_what_the_checkpoint_lacks_is_computed():
    """A fresh head is zeros: the compiled initialisation draws no random number."""
    recorded = golden("vit_token")
    model = recorded.model().clone(num_classes=9)

    def init():
        return model.init(jax.random.key(0), jnp.asarray(recorded.images[:1]))["params"]

    with checkpoint.open(recorded.path) as found:
        fitted = found.fit(jax.eval_shape(init))
        assert set(fitted.fresh) == {"head/kernel", "head/bias"}
        flat = lambda: flax.traverse_util.flatten_dict(init(), sep="/")  # noqa: E731
        compiled = jax.jit(lambda: {n: flat()[n] for n in fitted.fresh}).lower().compile()
        assert compiled.cost_analysis().get("flops", 0) == 0
        mesh = arrange(jax.devices(), 8, 1)
        shardings = state_shardings(mesh, jax.eval_shape(init))
        params = fitted.restore(shardings, init)
    assert not np.any(params["head"]["kernel"])
    np.testing.assert_array_equal(params["cls"], recorded.params()["cls"])
    assert jax.tree.all(
        jax.tree.map(
            lambda leaf, s: leaf.sharding.is_equivalent_to(s, leaf.ndim), params, shardings
        )
    )


def test_the_largest_model_is_fitted_by_its_shapes_alone():
    """ViT-G/14 onto eight devices: nothing is read, no device gets more than its share."""
    model = models.get_model("ViT-G_14", num_classes=1000, scan=True)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    init = jax.eval_shape(lambda x: model.init(jax.random.key(0), x)["params"], images)
    abstract = jax.eval_shape(models.stack_blocks, init)

    def refuse(_):
        raise AssertionError("a weight was read")

    leaves = {
        name: Lazy(leaf.shape, np.dtype(np.float32), refuse)
        for name, leaf in models.parameter_shapes(model, (224, 224), 3).items()
    }
    card = checkpoint.Card(model, (16, 16))
    plan = Plan([Mapped((name,), name, "same", leaf) for name, leaf in leaves.items()])
    fitted = checkpoint.Checkpoint("G_14", "npz", card, plan).fit(abstract, grid=(16, 16))
    assert set(fitted.fresh) == {"head/bias", "head/kernel"}
    mesh = arrange(jax.devices(), 8, 1)
    total = sum(leaf.size * 4 for leaf in jax.tree.leaves(abstract))
    assert total > 7e9
    assert bytes_per_device(mesh, abstract) < 1.01 * total / 8
    largest = max(leaf.size * 4 for leaf in jax.tree.leaves(abstract))
    assert largest < 0.4 * total  # what the host holds at a time: one array, stacked over layers


def test_a_process_reads_the_part_that_its_devices_hold(tmp_path, monkeypatch):
    """As if only devices 2 and 3 of eight were this process's own."""
    array = np.arange(64 * 24, dtype=np.float32).reshape(64, 24)
    np.savez(tmp_path / "file.npz", array=array)
    mesh = arrange(jax.devices(), 8, 1)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = sharding.addressable_devices_indices_map
    monkeypatch.setattr(
        NamedSharding,
        "addressable_devices_indices_map",
        lambda self, shape: {d: i for d, i in everywhere(shape).items() if d.id in (2, 3)},
    )
    part = local_part(array.shape, sharding)
    assert part == (slice(16, 32), slice(0, 24))
    with checkpoint.opening.open_archive(tmp_path / "file.npz") as archive:
        read = archive.arrays["array"].read(part)
    np.testing.assert_array_equal(read, array[16:32])
    assert read.nbytes == array.nbytes // 4


def test_rows_and_stacks_are_inverse_and_a_whole_stack_is_not_taken_apart():
    array = from_array(np.arange(24.0).reshape(4, 3, 2))
    rows = unstacked(array, {})
    assert stacked(rows) is array
    again = stacked(rows[::-1])
    np.testing.assert_array_equal(again.read(), array.read()[::-1])
    np.testing.assert_array_equal(
        again.read((slice(1, 3), slice(0, 2))), array.read()[::-1][1:3, :2]
    )


def test_a_damaged_array_is_noticed_where_it_is_read_whole(tmp_path):
    np.savez(tmp_path / "file.npz", **{"head/kernel": np.arange(1000.0)})
    data = bytearray((tmp_path / "file.npz").read_bytes())
    data[600] ^= 1
    (tmp_path / "file.npz").write_bytes(data)
    with pytest.raises(ValueError, match="is damaged: its array 'head/kernel'"):
        checkpoint.load(tmp_path / "file.npz")


def test_nan_weights_are_named_before_a_model_is_made_of_them():
    leaf = from_array(np.array([1.0, np.nan], np.float32))
    fitted = Fitted({"a/b": leaf}, {"a": {"b": leaf.read()}}, "The file")
    with pytest.raises(ValueError, match="The file has NaN or infinite weights in a/b"):
        fitted.restore()
