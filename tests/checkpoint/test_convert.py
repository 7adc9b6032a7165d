"""Any checkpoint becomes any other, by its content, in the open, or not at all."""

import pickle
import shutil
import subprocess
import sys
import zipfile

import jax
import numpy as np
import pytest

from tests.reference import GOLDEN, golden, load_with_card
from vit_jax import checkpoint, convert
from vit_jax.checkpoint import formats

HF, TIMM, VIT = GOLDEN / "hf_vit", GOLDEN / "timm_vit.safetensors", GOLDEN / "vit_token.npz"


def test_the_format_is_told_by_content_and_not_by_name(tmp_path):
    shutil.copy(VIT, tmp_path / "a.safetensors")
    shutil.copy(TIMM, tmp_path / "b.npz")
    assert formats.recognise(tmp_path / "a.safetensors")[0] == formats.NPZ
    assert formats.recognise(tmp_path / "b.npz")[0] == formats.SAFETENSORS
    params = checkpoint.load(tmp_path / "b.npz", num_heads=4)
    assert params["embedding"]["kernel"].shape == (8, 8, 3, 48)


def test_an_index_names_its_folder():
    folder = GOLDEN / "foreign" / "hf_vit_model_with_pooler"
    path = folder / "model.safetensors.index.json"
    assert jax.tree.all(
        jax.tree.map(np.array_equal, checkpoint.load(path), checkpoint.load(folder))
    )


def test_a_missing_shard_is_named(tmp_path):
    shutil.copytree(GOLDEN / "foreign" / "hf_vit_model_with_pooler", tmp_path / "hf")
    (tmp_path / "hf" / "model-00002-of-00005.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00002-of-00005"):
        checkpoint.load(tmp_path / "hf")


def test_an_index_cannot_name_a_file_elsewhere(tmp_path):
    text = '{"weight_map": {"a": "../../secret.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match="beside it"):
        checkpoint.load(tmp_path)


def test_pickles_are_refused_unopened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb()))
    with zipfile.ZipFile(tmp_path / "torch.npz", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    (tmp_path / "hf").mkdir()
    shutil.copy(tmp_path / "plain.pt", tmp_path / "hf" / "pytorch_model.bin")
    for name in ("plain.pt", "torch.npz", "hf"):
        with pytest.raises(ValueError, match="safetensors"):
            checkpoint.load(tmp_path / name)


def test_a_file_cut_short_is_told_as_such(tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(TIMM.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cut short"):
        checkpoint.load(tmp_path / "cut.safetensors", num_heads=4)


def test_nan_weights_are_refused_and_nothing_is_written(tmp_path):
    params = checkpoint.load(VIT)
    _, card = load_with_card(VIT)
    params["head"]["bias"] = np.full_like(params["head"]["bias"], np.nan)
    for to, name in (("timm", "out.safetensors"), ("hf", "out")):
        with pytest.raises(ValueError, match="NaN or infinite"):
            checkpoint.save(params, tmp_path / name, card=card, to=to)
    assert not list(tmp_path.iterdir())


def test_a_recipe_can_start_from_foreign_weights():
    params, card = load_with_card(HF)
    model = card.model.clone(num_classes=7)
    images = jax.ShapeDtypeStruct((1, *card.image_size, 3), np.float32)
    init = jax.eval_shape(lambda x: model.init(jax.random.key(0), x)["params"], images)
    init = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), init)
    fitted = checkpoint.load_pretrained(
        pretrained_path=HF, init_params=init, model_config={"representation_size": None}
    )
    assert fitted["head"]["kernel"].shape == (48, 7)
    np.testing.assert_array_equal(fitted["cls"], params["cls"])


def test_what_was_done_is_printed(tmp_path, capsys):
    assert convert.main([str(TIMM), str(tmp_path / "out.npz")]) == 0
    printed = capsys.readouterr().out
    assert "blocks.{0..1}.mlp.fc1.weight -> " in printed
    assert ": transposed" in printed
    assert "part 2 of 3, transposed, heads apart" in printed
    folder = GOLDEN / "foreign" / "timm_registers_with_positions"
    assert convert.main([str(folder), str(tmp_path / "reg.npz")]) == 0
    assert "summed" in capsys.readouterr().out
    folder = GOLDEN / "foreign" / "hf_dinov2"
    assert convert.main([str(folder), str(tmp_path / "dino.npz")]) == 0
    assert "dropped embeddings.mask_token" in capsys.readouterr().out


def test_every_array_is_accounted_for(tmp_path):
    with checkpoint.open(GOLDEN / "foreign" / "hf_dinov2_registers") as opened:
        used = {name for mapped in opened.plan.mapped for name in mapped.sources}
        dropped = {name for name, _ in opened.plan.dropped}
    from safetensors import safe_open

    path = GOLDEN / "foreign" / "hf_dinov2_registers" / "model.safetensors"
    with safe_open(path, "numpy") as file:
        assert used | dropped == set(file.keys())
    assert not used & dropped


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.npz", "out.npz"], "There is no checkpoint at nowhere.npz"),
        ([str(GOLDEN / "mixer.npz"), "out", "--to", "hf"], "Only Vision Transformers"),
        ([str(GOLDEN / "vit_gap.npz"), "out", "--to", "timm"], "--image_size"),
        ([str(GOLDEN / "README.md"), "out.npz"], "not a readable .npz"),
    ],
)
def test_bad_input_gets_one_line_and_a_code(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert convert.main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_not_written_into(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists already"):
        checkpoint.convert(HF, tmp_path, to="timm")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_written_into(tmp_path):
    checkpoint.convert(HF, tmp_path, to="timm")
    assert (tmp_path / "config.json").exists()


def test_big_endian_numbers_are_read_as_any_others(tmp_path):
    with np.load(GOLDEN / "vit_token.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "big.npz", **{name: a.astype(">f4") for name, a in arrays.items()})
    checkpoint.convert(tmp_path / "big.npz", tmp_path / "out", to="hf")
    theirs = checkpoint.load(GOLDEN / "vit_token.npz")
    jax.tree.map(np.testing.assert_array_equal, checkpoint.load(tmp_path / "big.npz"), theirs)


def test_a_checkpoint_is_not_written_over_itself(tmp_path):
    shutil.copy(VIT, tmp_path / "a.npz")
    with pytest.raises(ValueError, match="over itself"):
        checkpoint.convert(tmp_path / "a.npz", tmp_path / "a.npz")


def test_a_grid_that_is_not_square_is_told_on_the_command_line(tmp_path):
    recorded = golden("vit_gap")
    _, height, width, _ = recorded.images.shape
    arguments = [str(recorded.path), str(tmp_path / "out"), "--to", "timm", "--quiet"]
    assert convert.main([*arguments, f"--image_size={height},{width}"]) == 0
    params, card = load_with_card(tmp_path / "out")
    assert card.grid == (height // 4, width // 4)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, recorded.params()))


def test_the_command_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "vit_jax.convert", str(HF), str(tmp_path / "a.npz"), "--quiet"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "(hf) -> " in found.stdout


@pytest.mark.shared
@pytest.mark.parametrize("to", ["timm", "hf"])
def test_the_real_model_there_and_back_gives_identical_logits(shared, to, tmp_path):
    source = shared / "real" / "Ti_16-tinyimagenet200.npz"
    checkpoint.convert(source, tmp_path / "there", to=to)
    checkpoint.convert(tmp_path / "there", tmp_path / "back.npz")
    params, card = load_with_card(source)
    model = card.model
    images = jax.random.normal(jax.random.key(0), (2, 224, 224, 3))
    run = jax.jit(lambda model, params: model.apply({"params": params}, images), static_argnums=0)
    logits = run(model, params)
    for path in (tmp_path / "there", tmp_path / "back.npz"):
        params, card = load_with_card(path)
        np.testing.assert_array_equal(run(card.model, params), logits)


@pytest.mark.parametrize("source", [TIMM, HF, VIT], ids=lambda path: path.name)
@pytest.mark.parametrize("num_heads", [2, 0, -4])
def test_heads_that_are_not_the_files_own_are_refused(source, num_heads, tmp_path):
    with pytest.raises(ValueError, match=f"has \\d+ heads, not the {num_heads} that were given"):
        checkpoint.convert(source, tmp_path / "out.npz", num_heads=num_heads)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_heads", [5, 0, -4])
def test_heads_that_no_file_can_have_are_refused(num_heads, tmp_path):
    shutil.copy(TIMM, tmp_path / "bare.safetensors")  # without the configuration beside it
    with pytest.raises(ValueError, match=f"{num_heads} heads do not divide a width of 48"):
        checkpoint.load(tmp_path / "bare.safetensors", num_heads=num_heads)


def test_torch_is_never_imported():
    program = (
        "import sys, vit_jax.convert, vit_jax.catalog; "
        "sys.exit('torch' in sys.modules or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
