"""The catalog's rows are true as far as we can check, and fetching them is safe."""

import csv
import json
import re

import jax
import numpy as np
import pytest

from tests.checkpoint.http_server import serving
from tests.reference import load_with_card
from vit_jax import catalog as command
from vit_jax import models
from vit_jax.checkpoint import augreg, catalog, download
from vit_jax.models import zoo

ENTRIES = catalog.entries()
NAME = "augreg-Ti_16-i21k"  # homes: hub, then bucket
HUB = "/timm/vit_tiny_patch16_224.augreg_in21k/resolve/main/"
BUCKET = "/vit_models/augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0.npz"


@pytest.mark.parametrize("name", ENTRIES)
def test_each_row_has_a_model_with_as_many_parameters(name):
    entry = ENTRIES[name]
    fields = {"representation_size": entry.representation} if entry.representation else {}
    if not isinstance(zoo.MODELS[entry.model], zoo.Mixer):
        # One block counted as often as the model has it: the same number, much sooner.
        fields["transformer"] = {"num_layers": 1}
    model = models.get_model(entry.model, num_classes=entry.classes, **fields)
    image = jax.ShapeDtypeStruct((1, entry.resolution, entry.resolution, 3), np.float32)
    params = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False), image)[
        "params"
    ]
    count = _size(params)
    if "Transformer" in params:
        depth = models.model_config(entry.model).transformer.num_layers
        count += (depth - 1) * _size(params["Transformer"]["encoderblock_0"])
    assert entry.parameters == count
    assert entry.mib == round(4 * count / 2**20)


def _size(tree):
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


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


@pytest.fixture
def server(monkeypatch):
    with serving() as server:
        monkeypatch.setenv("VIT_JAX_HUB", server.url)
        monkeypatch.setenv("VIT_JAX_BUCKET", server.url)
        server.files[HUB + "config.json"] = b"{}"
        server.files[HUB + "model.safetensors"] = b"hub weights"
        server.files[BUCKET] = b"bucket weights"
        yield server


def test_the_first_home_that_answers_is_taken(server, tmp_path):
    path = catalog.fetch(NAME, cache=tmp_path)
    assert path == tmp_path / NAME / "hub"
    assert (path / "model.safetensors").read_bytes() == b"hub weights"
    assert BUCKET not in server.paths()


def test_a_home_that_refuses_leads_to_the_next(server, tmp_path):
    server.behaviours[HUB + "config.json"] = [403]
    path = catalog.fetch(NAME, cache=tmp_path)
    assert path.read_bytes() == b"bucket weights"


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
    (path / "model.safetensors").write_bytes(b"tampered")
    with pytest.raises(download.DownloadError, match="not the file that was downloaded"):
        catalog.fetch(NAME, cache=tmp_path)
    (path / "model.safetensors").unlink()
    server.files[HUB + "model.safetensors"] = b"other weights under the same name"
    server.behaviours[BUCKET] = [403]
    with pytest.raises(download.DownloadError, match="sha256"):
        catalog.fetch(NAME, cache=tmp_path)


def test_a_hash_in_the_catalog_is_checked_at_once(server, tmp_path, monkeypatch):
    import dataclasses

    entry = dataclasses.replace(
        ENTRIES[NAME], homes=ENTRIES[NAME].homes[1:], sha256="f" * 64, name="checked"
    )
    monkeypatch.setattr(catalog, "entries", lambda: {"checked": entry})
    with pytest.raises(download.DownloadError, match="f" * 64):
        catalog.fetch("checked", cache=tmp_path)


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", "/etc/passwd", ".hidden"])
def test_a_name_cannot_leave_the_cache(name, tmp_path):
    with pytest.raises(ValueError, match="no checkpoint"):
        catalog.fetch(name, cache=tmp_path)
    with pytest.raises(ValueError, match="cannot be the name"):
        catalog._folder(tmp_path, name, "hub")


def test_what_was_fetched_from_a_hub_can_be_loaded(server, tmp_path, golden):
    folder = golden / "hf_vit"
    server.files[HUB + "config.json"] = (folder / "config.json").read_bytes()
    server.files[HUB + "model.safetensors"] = (folder / "model.safetensors").read_bytes()
    path = catalog.fetch(NAME, cache=tmp_path)
    params, card = load_with_card(path)
    assert card.num_classes == 5
    assert params["head"]["kernel"].shape == (48, 5)


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
    assert output.out.strip() == str(tmp_path / NAME / "hub")
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
