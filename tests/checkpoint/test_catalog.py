"""The catalog's rows are true as far as we can check, and fetching them is safe."""

import csv
import dataclasses
import io
import json
import math
import re
import shutil

import numpy as np
import pytest

import vit_jax
from tests.checkpoint.http_server import serving
from tests.reference import load_with_card
from vit_jax import catalog as command
from vit_jax import checkpoint, models
from vit_jax.checkpoint import augreg, catalog, download

ENTRIES = catalog.entries()
NAME = "augreg-Ti_16-i21k"  # homes: hub, then bucket
HUB = "/timm/vit_tiny_patch16_224.augreg_in21k/resolve/main/"
BUCKET = "/vit_models/augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0.npz"


@pytest.mark.parametrize("name", ENTRIES)
def test_each_row_has_a_model_with_as_many_parameters(name):
    entry = ENTRIES[name]
    count = sum(math.prod(leaf.shape) for leaf in catalog._shapes(entry).values())
    assert entry.parameters == count
    assert entry.mib == round(4 * count / 2**20)
    sizes = catalog._sizes("model.npz", entry)
    assert 4 * count in sizes
    assert 5 * count not in sizes
    assert count not in sizes


def test_every_home_is_a_repository_or_a_bucket_path():
    for entry in ENTRIES.values():
        assert entry.homes, entry.name
        for home in entry.homes:
            pattern = r"hub:[\w-]+/[\w.-]+|gs://(vit|mixer)_models/[\w+./-]+\.npz"
            assert re.fullmatch(pattern, home), home
            _, files = catalog.remote_files(home)
            assert all(file.url.startswith("https://") for file in files)
        assert entry.licence == "Apache-2.0"
        assert entry.accuracy is None or 50 < entry.accuracy < 100


def test_the_recommended_augreg_models_are_all_there():
    recommended = [e for e in ENTRIES.values() if "recommended)" in e.training]
    assert len(recommended) == 18
    assert sum(entry.accuracy is not None for entry in recommended) == 9


def test_a_bucket_file_is_listed_once():
    paths = [home for e in ENTRIES.values() for home in e.homes if home.startswith("gs://")]
    assert len(paths) == len(set(paths))


# The row of NAME, as if its model were the smallest of the zoo.
TINY = dataclasses.replace(
    ENTRIES[NAME], model="testing", resolution=32, classes=5, parameters=8525, mib=0
)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """What the homes of TINY have: a folder of timm's, and an .npz."""
    folder = tmp_path_factory.mktemp("published")
    model = models.get_model("testing", num_classes=5)
    card = checkpoint.Card(model, grid=(2, 2))
    shapes = card.parameter_shapes()
    assert sum(math.prod(leaf.shape) for leaf in shapes.values()) == TINY.parameters
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=leaf.shape).astype(np.float32) for leaf in shapes.values()]
    params = checkpoint.recover_tree(list(shapes), arrays)
    for to in ("timm", "npz"):
        checkpoint.save(params, folder / to, card=card, to=to)
    return folder


@pytest.fixture
def server(monkeypatch, published):
    monkeypatch.setattr(catalog, "entries", lambda: {**ENTRIES, NAME: TINY})
    with serving() as server:
        monkeypatch.setenv("VIT_JAX_HUB", server.url)
        monkeypatch.setenv("VIT_JAX_BUCKET", server.url)
        for name in ("config.json", "model.safetensors"):
            server.files[HUB + name] = (published / "timm" / name).read_bytes()
        server.files[BUCKET] = (published / "npz").read_bytes()
        yield server


def test_the_first_home_that_answers_is_taken(server, tmp_path):
    path = catalog.fetch(NAME, cache=tmp_path)
    assert path == tmp_path / NAME / "timm"
    assert (path / "model.safetensors").read_bytes() == server.files[HUB + "model.safetensors"]
    assert BUCKET not in server.paths()


def test_a_home_that_refuses_leads_to_the_next(server, tmp_path):
    server.behaviours[HUB + "config.json"] = [403]
    path = catalog.fetch(NAME, cache=tmp_path)
    assert path.read_bytes() == server.files[BUCKET]


def test_when_no_home_works_the_error_says_how_each_failed(server, tmp_path):
    server.behaviours[HUB + "config.json"] = [403]
    server.behaviours[BUCKET] = [404]
    with pytest.raises(download.DownloadError) as caught:
        catalog.fetch(NAME, cache=tmp_path)
    assert "hub:timm/vit_tiny_patch16_224.augreg_in21k" in str(caught.value)
    assert "answered 403" in str(caught.value)
    assert "gs://vit_models/augreg/Ti_16" in str(caught.value)
    assert "answered 404" in str(caught.value)


def test_the_cache_is_used_without_a_network(server, tmp_path):
    with pytest.raises(download.DownloadError, match="not in the cache"):
        catalog.fetch(NAME, cache=tmp_path, offline=True)
    assert not server.requests
    path = catalog.fetch(NAME, cache=tmp_path)
    server.requests.clear()
    assert catalog.fetch(NAME, cache=tmp_path, offline=True) == path
    assert catalog.fetch(NAME, cache=tmp_path) == path
    assert not server.requests


def test_a_hash_recorded_on_first_use_is_checked_ever_after(server, tmp_path):
    path = catalog.fetch(NAME, cache=tmp_path)
    weights = server.files[HUB + "model.safetensors"]
    (path / "model.safetensors").write_bytes(weights[:-4] + b"evil")
    with pytest.raises(download.DownloadError, match="not the file that was downloaded"):
        catalog.fetch(NAME, cache=tmp_path)
    (path / "model.safetensors").unlink()
    server.files[HUB + "model.safetensors"] = weights[:-4] + b"evil"
    server.behaviours[BUCKET] = [403]
    with pytest.raises(
        download.DownloadError, match=r"sha256 .* remove its line from .*hashes.json"
    ):
        catalog.fetch(NAME, cache=tmp_path)


def test_a_hash_in_the_catalog_is_checked_at_once(server, tmp_path, monkeypatch):
    entry = dataclasses.replace(TINY, homes=TINY.homes[1:], sha256="f" * 64, name="checked")
    monkeypatch.setattr(catalog, "entries", lambda: {"checked": entry})
    with pytest.raises(download.DownloadError, match="f" * 64):
        catalog.fetch("checked", cache=tmp_path)


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", "/etc/passwd", ".hidden"])
def test_a_name_cannot_leave_the_cache(name, tmp_path):
    with pytest.raises(ValueError, match="no checkpoint"):
        catalog.fetch(name, cache=tmp_path)
    with pytest.raises(ValueError, match="cannot be the name"):
        catalog._folder(tmp_path, name, "hub:timm/model")


def test_what_was_fetched_can_be_loaded(server, tmp_path):
    params, card = load_with_card(catalog.fetch(NAME, cache=tmp_path))
    assert card.num_classes == 5
    assert params["head"]["kernel"].shape == (10, 5)


def test_a_name_is_loaded_from_the_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path))
    path = catalog.fetch(NAME)
    server.requests.clear()
    assert vit_jax.load(NAME).model == vit_jax.load(path).model
    assert not server.requests


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def arrays(weights):
    return np.load(io.BytesIO(weights)).items()


INSTEAD = {
    "an error page": (b"<!DOCTYPE html>", r"15 bytes, not [\d,]+ to [\d,]+; .*b'<!DOCTYPE html>'"),
    "a long error page": (b"<html>" * 5000, "not a readable .npz .*begins with b'<html><html>"),
    "a pointer": (b"version https://git-lfs" + b" " * 30_000, "Git LFS pointer"),
    "a pickle": (b"\x80\x04" + b"." * 30_000, "a pickle"),
    "the first half": (lambda weights: weights[: len(weights) // 2 + 2000], "not a readable .npz"),
    "another model": (npz(a=np.zeros(8000, np.float32)), "has no Transformer/.*model has no a"),
    "a model of another size": (
        lambda right: npz(**{k: v[:8, :8] if v.ndim == 4 else v for k, v in arrays(right)}),
        r"embedding/kernel: \(8, 8, 3, 10\) in the checkpoint, \(16, 16, 3, 10\)",
    ),
    "far too much": (bytes(2 << 20), "announces 2,097,152 bytes"),
}


@pytest.mark.parametrize("what", INSTEAD)
def test_what_is_not_the_checkpoint_is_not_believed(what, server, tmp_path):
    body, said = INSTEAD[what]
    right = server.files[BUCKET]
    server.files[BUCKET] = body(right) if callable(body) else body
    server.behaviours[HUB + "config.json"] = [403]
    with pytest.raises(download.DownloadError, match=said) as caught:
        catalog.fetch(NAME, cache=tmp_path)
    assert str(caught.value).isprintable()
    assert not list(tmp_path.rglob("*.npz"))
    assert not (tmp_path / "hashes.json").exists()
    server.files[BUCKET] = right
    server.behaviours[HUB + "config.json"] = [403]
    assert catalog.fetch(NAME, cache=tmp_path).read_bytes() == right


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("config.json", b"<html>"),
        ("config.json", b"[1]"),
        ("preprocessor_config.json", b"[" * 9999),
        ("model.safetensors", b"PK" + bytes(30_000)),
        ("model.safetensors", (30).to_bytes(8, "little") + b"{" + bytes(30_000)),
    ],
)
def test_a_hub_folder_is_believed_as_a_whole(name, body, server, tmp_path):
    right = server.files.get(HUB + name)
    server.files[HUB + name] = body
    assert catalog.fetch(NAME, cache=tmp_path) == tmp_path / NAME / "bucket" / BUCKET.split("/")[-1]
    known = json.loads((tmp_path / "hashes.json").read_text())
    assert set(known) == {server.url + BUCKET}  # nothing of the hub's was recorded
    shutil.rmtree(tmp_path / NAME)
    server.files[HUB + name] = right
    if right is None:
        del server.files[HUB + name]
    assert catalog.fetch(NAME, cache=tmp_path) == tmp_path / NAME / "timm"


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 9999, "\udcff", "{5}"])
def test_damaged_hashes_are_told_and_written_anew(text, server, tmp_path, caplog):
    path = catalog.fetch(NAME, cache=tmp_path)
    right = json.loads((tmp_path / "hashes.json").read_text())
    (tmp_path / "hashes.json").write_text(text, errors="surrogateescape")
    server.requests.clear()
    assert catalog.fetch(NAME, cache=tmp_path) == path
    assert "hashes.json" in caplog.text
    assert not server.requests
    assert json.loads((tmp_path / "hashes.json").read_text()) == right


@pytest.mark.parametrize("value", [5, None, ["a"], "short", "F" * 64])
def test_a_hash_that_is_none_is_replaced_after_a_look(value, server, tmp_path, caplog):
    path = catalog.fetch(NAME, cache=tmp_path) / "model.safetensors"
    hashes = json.loads((tmp_path / "hashes.json").read_text())
    url = server.url + HUB + "model.safetensors"
    (tmp_path / "hashes.json").write_text(json.dumps({**hashes, url: value}))
    catalog.fetch(NAME, cache=tmp_path)
    assert url in caplog.text
    assert json.loads((tmp_path / "hashes.json").read_text()) == hashes
    (tmp_path / "hashes.json").write_text(json.dumps({**hashes, url: value}))
    path.write_bytes(b"<html>")
    with pytest.raises(download.DownloadError, match=r"Delete .*model\.safetensors to fetch"):
        catalog.fetch(NAME, cache=tmp_path)


def test_two_repositories_do_not_share_a_folder(tmp_path):
    folders = [catalog._folder(tmp_path, "a", home) for home in ENTRIES["ViT-B_16-i21k"].homes]
    assert [folder.name for folder in folders] == ["bucket", "google", "timm"]


@pytest.fixture
def index(tmp_path):
    path = tmp_path / "index.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "ds", "final_val", "filename", "adapt_filename"])
        writer.writerow(["B_16", "i21k", "0.41", "B_16-i21k-worse", "B_16-i21k-worse--cifar"])
        writer.writerow(["B_16", "i21k", "0.47", "B_16-i21k-best", "B_16-i21k-best--cifar"])
        writer.writerow(["B_16", "i1k", "0.83", "B_16-i1k", ""])
        writer.writerow(["S_16", "i21k", "0.45", "S_16-i21k", ""])
    return path


def test_a_bare_augreg_name_gives_the_best_i21k_checkpoint(index):
    assert augreg.best("B_16", index)["filename"] == "B_16-i21k-best"
    assert augreg.best("B_16-i21k-worse--cifar.npz", index)["filename"] == "B_16-i21k-worse"
    with pytest.raises(ValueError, match="it has B_16, S_16"):
        augreg.best("L_16", index)


def test_the_augreg_index_may_be_remote(server, index, tmp_path):
    server.files["/vit_models/augreg/index.csv"] = index.read_bytes()
    for _ in range(2):
        assert augreg.best("B_16", cache=tmp_path / "c")["filename"] == "B_16-i21k-best"
    assert server.paths() == ["/vit_models/augreg/index.csv"]


def test_the_command_lists_shows_and_fetches(server, tmp_path, capsys):
    assert command.main(["list", "mixer"]) == 0
    listed = capsys.readouterr().out
    assert "Mixer-L_16-i1k" in listed
    assert "ViT-L_16" not in listed
    assert command.main(["show", NAME]) == 0
    assert "Apache-2.0" in capsys.readouterr().out
    assert command.main(["fetch", NAME, "--cache", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.out.strip() == str(tmp_path / NAME / "timm")
    assert "model.safetensors" in output.err  # progress, in plain lines


def test_the_command_ends_with_one_line_and_a_code(server, tmp_path, capsys):
    assert command.main(["show", "augreg-Ti_16"]) == 1
    assert "Did you mean augreg-Ti_16-i21k" in capsys.readouterr().err
    server.behaviours[HUB + "config.json"] = [403]
    server.behaviours[BUCKET] = [403]
    assert command.main(["fetch", NAME, "--cache", str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_hashes_are_kept_as_json_a_person_can_read(server, tmp_path):
    catalog.fetch(NAME, cache=tmp_path)
    known = json.loads((tmp_path / "hashes.json").read_text())
    assert set(known) == {server.url + HUB + name for name in ("config.json", "model.safetensors")}


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["fetch", NAME, f"--timeout={value}"]
            for value in ("0", "-1", "nan", "inf", "x", "1e99")
        ),
        *(["fetch", name] for name in ("", "nothing-like-it", "../x", "a" * 999, "\x1b[31m")),
        ["fetch", NAME, "--cache=~no-such-user/x"],
        ["fetch", NAME, "--cache=/dev/null/x"],
        ["show", ""],
        ["list", "no such text"],
        ["augreg", "B_16", "--index=/no/such/file"],
        ["augreg", "B_16", "--index=s3://bucket/index.csv"],
        ["augreg", "B_16", "--index=https://[::1/index.csv"],
        [],
        ["frobnicate"],
    ],
)
def test_bad_arguments_are_one_line(arguments, server, capsys):
    assert command.main(arguments) == 1
    errors = capsys.readouterr().err
    assert len(errors.strip().splitlines()) == 1
    assert errors.strip().isprintable()
    assert not server.requests


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"name,ds,final_val,filename\n",
        b"name,ds,final_val,filename\nB_16,i21k,high,x\n",
        b"name,ds,final_val,filename\nB_16,i21k\n",
        b"name,ds,final_val,filename\n" + b"x" * 200_000,
        b"name,ds,final_val,filename\n\0,1,2,3",
    ],
)
def test_an_index_that_is_none_is_one_error(text, server, tmp_path, capsys):
    server.files["/vit_models/augreg/index.csv"] = text
    (tmp_path / "index.csv").write_bytes(text)
    for index in ([], ["--index", str(tmp_path / "index.csv")]):
        assert command.main(["augreg", "B_16", "--cache", str(tmp_path / "c"), *index]) == 1
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_an_error_page_is_not_kept_as_the_index(server, index, tmp_path):
    server.files["/vit_models/augreg/index.csv"] = b"<html>busy</html>"
    with pytest.raises(download.DownloadError, match="not AugReg's index"):
        augreg.best("B_16", cache=tmp_path / "c")
    server.files["/vit_models/augreg/index.csv"] = index.read_bytes()
    assert augreg.best("B_16", cache=tmp_path / "c")["filename"] == "B_16-i21k-best"


def test_an_index_is_shown_not_executed(tmp_path, capsys):
    text = "name,ds,final_val,filename\nB_16,i21k,0.5,\x1b[31mred\n"
    (tmp_path / "index.csv").write_text(text)
    assert command.main(["augreg", "B_16", "--index", str(tmp_path / "index.csv")]) == 0
    assert r"filename               \x1b[31mred" in capsys.readouterr().out
