"""Checkpoints from strangers: the right weights, or one error that names the file and what is wrong
with it; nothing large is made of a small file.
"""

import io
import json
import re
import shutil
import struct
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy
from safetensors.numpy import load_file, save_file

import vit_jax
from tests.checkpoint.test_foreign import path_of
from tests.reference import golden, load_with_card
from vit_jax import checkpoint
from vit_jax.models.kinds import flatten


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small .npz of ours, with a card."""
    recorded = golden("vit_token")
    with checkpoint.open(recorded.path, image_size=recorded.images.shape[1:3]) as found:
        path = tmp_path_factory.mktemp("whole") / "model.npz"
        checkpoint.save(found.params(), path, card=found.card)
    return path


def members(path):
    """Name and bytes of each array, and the card."""
    with zipfile.ZipFile(path) as file:
        return {info.filename: file.read(info) for info in file.infolist()}, file.comment


def write(path, contents, comment=b"", method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in contents.items():
            file.writestr(name, data)
        file.comment = comment
    return path


def refused(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        vit_jax.load(path)
    assert str(path) in str(caught.value)


# Damaged archives


def entries(data):
    """Where each entry of a zip file's central directory begins, and where the last one ends."""
    first, end = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    starts = [i for i in range(first, end) if data[i : i + 4] == b"PK\1\2"]
    return [*starts, end]


def without_entry(data, i):
    """The archive with an entry cut out of its directory, which is otherwise consistent."""
    starts = entries(data)
    end, length = starts[-1], starts[i + 1] - starts[i]
    count, size = len(starts) - 2, end - starts[0] - length
    record = data[end : end + 8] + struct.pack("<HHI", count, count, size) + data[end + 16 :]
    return data[: starts[i]] + data[starts[i + 1] : end] + record


def swallowed_entry(data, i):
    """As above, with the entry made the comment of the one before it."""
    starts = entries(data)
    length = struct.pack("<H", starts[i + 1] - starts[i])
    return data[: starts[i - 1] + 32] + length + data[starts[i - 1] + 34 :]


def renamed_entry(data, i):
    """The name ends in .npz, in the directory alone."""
    at = data.index(b".npy", entries(data)[i])
    return data[:at] + b".npz" + data[at + 4 :]


@pytest.mark.parametrize("damage", [without_entry, swallowed_entry, renamed_entry])
@pytest.mark.parametrize("which", [1, -2])
def test_a_damaged_directory_drops_no_array(damage, which, whole, tmp_path):
    """An optional array (a head's bias, a norm) would otherwise be missing without a word."""
    data = whole.read_bytes()
    which %= len(entries(data))
    (tmp_path / "cut.npz").write_bytes(damage(data, which))
    refused(tmp_path / "cut.npz", "is damaged: .*the directory of the file")


def test_a_card_that_lost_its_length_is_not_overlooked(whole, tmp_path):
    """Weights without their card would be another model: another GELU, other class names."""
    data = whole.read_bytes()
    at = data.rindex(b"PK\5\6") + 20
    (tmp_path / "model.npz").write_bytes(data[:at] + b"\0\0" + data[at + 2 :])
    refused(tmp_path / "model.npz", "more bytes follow its end")
    (tmp_path / "model.npz").write_bytes(data.replace(b'"num_classes": 5', b'"num_classes": x'))
    refused(tmp_path / "model.npz", "The card in it is not readable JSON")


def header(text, version=(1, 0)):
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text) + 1)
    return b"\x93NUMPY" + bytes(version) + length + text.encode("latin1") + b"\n"


def described(shape="(5,)", descr="'<f4'"):
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


@pytest.mark.parametrize(
    "head",
    [
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (5,"),  # TokenError
        header("(" * 3000),  # MemoryError, or RecursionError
        header("{'descr': '<f4', 'shape': (5,)}"),
        header("'a'[0]"),
        header("{}", version=(9, 9)),  # KeyError
        header("{}" + " " * 2**20, version=(2, 0)),  # longer than any
        described("(4,)"),  # cut one short
        described("(6,)"),
        described("(-5,)"),
        described("(5, -1, -1)"),
        described(f"({10**30}, 0)"),  # OverflowError
        described(f"({2**62}, 0)"),
        described("(5,)", "'<f3'"),  # TypeError
        described("(5,)", "('<f2', (2,))"),
        described("(5,)", "'|O'"),
        described("(5,)", "'<U1'"),
        described("(5,)", "[('a', '<f2'), ('b', '<i2')]"),
        b"",
        b"\x93NUMPY",
    ],
)
def test_an_array_whose_header_is_wrong_is_named(head, whole, tmp_path):
    contents, card = members(whole)
    contents["head/bias.npy"] = head + bytes(20)
    refused(write(tmp_path / "model.npz", contents, card), "head/bias")


def with_directory_field(offset, value, name="head/bias.npy"):
    """A change of one field of an array's entry in the directory and in its own header."""

    def change(data):
        data = bytearray(data)
        at = data.rindex(name.encode())
        data[at - 46 + offset : at - 46 + offset + len(value)] = value
        own = data.index(name.encode()) - 30 + offset - 2
        data[own : own + len(value)] = value
        return bytes(data)

    return change


@pytest.mark.parametrize(
    "change",
    [
        with_directory_field(8, b"\1\0"),  # encrypted: RuntimeError
        with_directory_field(8, b"\x20\0"),  # patched: NotImplementedError
        with_directory_field(10, b"\x63\0"),  # an unknown compression
        with_directory_field(10, b"\x0e\0"),  # LZMA
        with_directory_field(16, b"\0\0\0\0"),  # checksum
        with_directory_field(24, b"\xff\xff\xff\x7f"),  # size
        with_directory_field(42, b"\xff\xff\xff\x7f"),  # place
        lambda data: data[: entries(data)[-1] + 16] + b"\xff" * 4 + data[entries(data)[-1] + 20 :],
    ],
)
def test_an_archive_with_a_wrong_directory_is_one_error(change, whole, tmp_path):
    (tmp_path / "model.npz").write_bytes(change(whole.read_bytes()))
    refused(tmp_path / "model.npz", "damaged|not a readable .npz")


def test_two_arrays_of_one_name_are_refused(whole, tmp_path):
    contents, card = members(whole)
    path = write(tmp_path / "model.npz", contents, card)
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("head/bias.npy", contents["head/bias.npy"])
    refused(path, "'head/bias.npy' cannot be read .there are two of that name")


def test_a_member_that_is_not_an_array_does_not_hide_one_that_is(whole, tmp_path):
    contents, card = members(whole)
    path = write(tmp_path / "model.npz", contents | {"head/bias": b"?"}, card)
    np.testing.assert_array_equal(
        checkpoint.load(path)["head"]["bias"], checkpoint.load(whole)["head"]["bias"]
    )


def test_any_changed_byte_outside_the_data_is_right_weights_or_one_error(whole, tmp_path):
    data, rng = whole.read_bytes(), np.random.default_rng(0)
    wanted = flatten(checkpoint.load(whole))
    first = entries(data)[0]
    heads = [m.start() + int(rng.integers(180)) for m in re.finditer(b"PK\3\4", data)]
    places = [*heads, *rng.integers(first, len(data), 150).tolist()]
    path, outcomes = tmp_path / "model.npz", set()
    for at in places:
        changed = bytearray(data)
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            found = flatten(checkpoint.load(path))
        except ValueError as e:
            assert str(path) in str(e)
            outcomes.add("refused")
        else:
            assert found.keys() == wanted.keys()
            assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
            outcomes.add("right")
    assert outcomes == {"refused", "right"}


# Claims that are larger than the file


def npy_bytes(array):
    stream = io.BytesIO()
    npy.write_array(stream, array)
    return stream.getvalue()


def test_a_small_file_does_not_become_large_arrays(whole, tmp_path):
    contents, card = members(whole)
    contents["head/kernel.npy"] = npy_bytes(np.zeros((32, 800_000), np.float32))
    path = write(tmp_path / "model.npz", contents, card, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1e6
    refused(path, "bytes are said to hold arrays of 10.* and no weights can be compressed so well")


def test_a_small_directory_does_not_become_large_arrays(tmp_path):
    """What Orbax does not find of an array, it reads as zeros."""
    zeros = np.zeros((32, 800_000), np.float32)
    checkpoint.save({"head": {"kernel": zeros}}, tmp_path / "orbax", to="orbax")
    refused(tmp_path / "orbax", "bytes are said to hold arrays of 102,400,000")


def test_more_arrays_than_any_model_has_are_not_looked_at(tmp_path):
    write(tmp_path / "many.npz", {f"{i}.npy": b"" for i in range(10_001)})
    refused(tmp_path / "many.npz", "holds 10,001 arrays")
    save_file({str(i): np.zeros(0) for i in range(10_001)}, tmp_path / "many.safetensors")
    refused(tmp_path / "many.safetensors", "holds 10,001 arrays")
    arrays = {f"blocks.{i}.norm1.weight": np.zeros(1) for i in range(1001)}
    arrays["patch_embed.proj.weight"] = np.zeros((4, 3, 2, 2))
    save_file(arrays, tmp_path / "deep.safetensors")
    refused(tmp_path / "deep.safetensors", "has 1,001 blocks")


def test_an_error_does_not_list_ten_thousand_names(whole, tmp_path):
    contents, card = members(whole)
    contents |= {f"{i}.npy": npy_bytes(np.zeros(1)) for i in range(1000)}
    refused(write(tmp_path / "model.npz", contents, card), "model has no 0, 1, .* and 970 more")


def test_shapes_are_compared_before_any_array_is_read(whole, tmp_path, monkeypatch):
    contents, card = members(whole)
    contents["head/kernel.npy"] = npy_bytes(np.zeros((32, 9), np.float32))
    path = write(tmp_path / "model.npz", contents, card)

    def read(*_):
        pytest.fail("an array was read")

    monkeypatch.setattr(checkpoint.npz.Archive, "read", read)
    refused(path, r"head/kernel: \(32, 9\) in the checkpoint, \(32, 5\) in the model")


def test_a_stack_of_a_billion_blocks_is_not_taken_apart(tmp_path):
    name = "params/Transformer/encoderblock/LayerNorm_0/scale.npy"
    write(tmp_path / "model.npz", {name: described(f"({10**9}, 0)")})
    refused(tmp_path / "model.npz", "no stack of at most 1,000 blocks")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_card_is_read_within_limits(method, whole, tmp_path):
    contents, _ = members(whole)
    contents["card.json"] = b'{"format": 1, "source": "' + bytes(33 << 20) + b'"}'
    path = write(tmp_path / "model.npz", contents, method=method)
    refused(path, "The card in it is longer than the 32 MiB")


def with_card(whole, path, change):
    contents, card = members(whole)
    return write(path, contents, json.dumps(json.loads(card) | change).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_classes", True),
        ("num_classes", "5"),
        ("num_classes", 10**9),
        ("class_names", "abcde"),
        ("class_names", [1, 2, 3, 4, 5]),
        ("grid", [10**9, 1]),
        ("grid", [4.0, 4.0]),
        ("grid", 4),
        ("channels", 0),
        ("channels", None),
        ("model", []),
        ("source", 3),
        ("metrics", "good"),
        ("versions", None),
        ("data", [1]),
        ("inferred", "no"),
        ("preprocessing", [1]),
    ],
)
def test_a_card_with_a_wrong_kind_of_value_names_it(field, value, whole, tmp_path):
    refused(with_card(whole, tmp_path / "model.npz", {field: value}), f"{field} is")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"transformer": {"num_layers": 10**9, "mlp_dim": 64, "num_heads": 4}}, "num_layers is"),
        ({"transformer": {"num_layers": 2, "mlp_dim": 64, "num_heads": 0}}, "num_heads is 0"),
        ({"transformer": 3}, "transformer is 3"),
        ({"patches": {"size": [4]}}, "patches.size is"),
        ({"patches": {}}, "patches.size is None"),
        ({"hidden_size": 10**9}, "hidden_size is"),
        ({"gelu": ["erf"]}, "gelu is"),
        ({"name": "x"}, "no field name"),
        ({"resnet": {"num_layers": [10**6]}}, "resnet.num_layers is"),
    ],
)
def test_a_card_with_an_impossible_model_is_refused(change, problem, whole, tmp_path):
    _, card = members(whole)
    model = json.loads(card)["model"] | change
    refused(with_card(whole, tmp_path / "model.npz", {"model": model}), problem)


@pytest.mark.parametrize("position", ["sincos2d", "relative"])
def test_the_shapes_of_a_card_with_a_huge_grid_cost_nothing(position, whole):
    """A table of all pairs of its patches would be 2³² numbers."""
    _, card = load_with_card(whole)
    model = card.model.clone(position=position)
    shapes = checkpoint.Card(model, (256, 256)).parameter_shapes()
    small = checkpoint.Card(model, (3, 2)).parameter_shapes()
    assert shapes.keys() == small.keys()
    name = "Transformer/encoderblock_1/relative_position_bias/offsets"
    if position == "relative":
        assert small[name].shape == (5, 3, 4)
        assert shapes[name].shape == (511, 511, 4)


def test_a_card_nested_too_deep_is_refused(whole, tmp_path):
    contents, card = members(whole)
    deep = card.replace(b'"metrics": {}', b'"metrics": {"a": ' + b"[" * 9000 + b"]" * 9000 + b"}")
    refused(write(tmp_path / "model.npz", contents, deep), "nested deeper")


# Folders of other libraries


@pytest.mark.parametrize(
    ("name", "file", "field", "value"),
    [
        ("timm_siglip", "config.json", "architecture", 3),
        ("timm_siglip", "config.json", "model_args", []),
        ("timm_siglip", "config.json", "model_args.num_heads", "4"),
        ("timm_siglip", "config.json", "model_args.num_heads", 10**9),
        ("timm_siglip", "config.json", "model_args.img_size", [32]),
        ("timm_siglip", "config.json", "model_args.act_layer", {}),
        ("timm_siglip", "config.json", "pretrained_cfg.input_size", [3]),
        ("timm_siglip", "config.json", "pretrained_cfg.crop_pct", 0),
        ("timm_siglip", "config.json", "pretrained_cfg.mean", "abc"),
        ("timm_siglip", "config.json", "label_names", 3),
        ("hf_vit", "config.json", "architectures", "ViT"),
        ("hf_vit", "config.json", "vision_config", [1]),
        ("hf_vit", "config.json", "num_attention_heads", 4.0),
        ("hf_vit", "config.json", "hidden_act", ["gelu"]),
        ("hf_vit", "config.json", "layer_norm_eps", "1e-6"),
        ("hf_vit", "config.json", "layer_norm_eps", float("nan")),
        ("hf_vit", "config.json", "image_size", True),
        ("hf_vit", "config.json", "id2label", {"zero": "ant"}),
        ("hf_vit", "preprocessor_config.json", "size", {"height": 3}),
        ("hf_vit", "preprocessor_config.json", "image_mean", [None]),
        ("hf_vit", "preprocessor_config.json", "image_std", [0, 0, 0]),
        ("hf_vit", "preprocessor_config.json", "resample", "bicubic"),
        ("hf_vit", "model.safetensors.index.json", "weight_map", ["model.safetensors"]),
        ("hf_vit", "model.safetensors.index.json", "weight_map.head", 3),
    ],
)
def test_a_configuration_with_a_wrong_kind_of_value_names_it(name, file, field, value, tmp_path):
    shutil.copytree(path_of(name), tmp_path / "folder")
    path = tmp_path / "folder" / file
    config = json.loads(path.read_text()) if path.exists() else {}
    *parents, last = field.split(".")
    inner = config
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    path.write_text(json.dumps(config))
    refused(tmp_path / "folder", f"{last} is .* and must be")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [("[" * 100_000, "nested deeper"), ("[]", "a JSON array"), ("", "is empty"), ("{", "not read")],
)
def test_a_configuration_that_is_no_object_is_named(name, text, problem, tmp_path):
    shutil.copytree(path_of("hf_vit"), tmp_path / "folder")
    (tmp_path / "folder" / name).write_text(text)
    refused(tmp_path / "folder", rf"{name} .*{problem}|{problem}.*{name}")


def test_null_in_a_configuration_is_as_good_as_nothing(tmp_path):
    shutil.copytree(path_of("hf_vit"), tmp_path / "folder")
    path = tmp_path / "folder" / "config.json"
    nulls = dict.fromkeys(["vision_config", "architectures", "id2label", "image_size"])
    path.write_text(json.dumps(json.loads(path.read_text()) | nulls))
    assert (
        load_with_card(tmp_path / "folder")[1].model == load_with_card(path_of("hf_vit"))[1].model
    )


def test_an_index_that_differs_from_its_files_is_refused(tmp_path):
    shutil.copytree(path_of("hf_dinov2"), tmp_path / "folder")
    arrays = load_file(tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / "model.safetensors").unlink()
    scales = {n for n in arrays if "layer_scale" in n}
    halves = {"1.safetensors": arrays.keys() - scales, "2.safetensors": scales}
    for file, names in halves.items():
        save_file({name: arrays[name] for name in names}, tmp_path / "folder" / file)
    files = {name: file for file, names in halves.items() for name in names}
    index = tmp_path / "folder" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    wanted = load_with_card(path_of("hf_dinov2"))[1]
    assert load_with_card(tmp_path / "folder")[1].model == wanted.model
    # Without its LayerScales it would be another model, which the other arrays fit.
    fewer = {name: file for name, file in files.items() if name not in scales}
    index.write_text(json.dumps({"weight_map": {**fewer, "nowhere": "1.safetensors"}}))
    refused(tmp_path / "folder", "not what its model.safetensors.index.json says: nowhere")


@pytest.mark.parametrize("num_heads", [-4, 0, 2])
def test_other_heads_than_the_files_own_are_refused(num_heads):
    with pytest.raises(ValueError, match=f"4 heads, not the {num_heads} that were given"):
        checkpoint.load(path_of("hf_vit"), num_heads=num_heads)
