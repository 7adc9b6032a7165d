"""--config FILE[:ARGUMENTS] and --config.NAME=VALUE."""

import pytest

from vit_jax.cli import recipe
from vit_jax.config import default_config


def read(*argv):
    return recipe.read(list(argv), default_config)


def test_values_take_the_type_of_the_option_and_other_arguments_are_left():
    config, rest = read(
        *("photos", "--config.batch=7", "--rows", "3", "--config.base_lr", "1e-3"),
        *("--noconfig.augment.flip", "--config.pp.mean", "-0.5", "--config.pp.exif"),
        *("--config.augment.crop_area=(0.1,1.0)", "--config.pretrained=a=b.npz", "--out=x"),
    )
    assert rest == ["photos", "--rows", "3", "--out=x"]
    assert (config.batch, config.base_lr, config.pp.mean) == (7, 1e-3, -0.5)
    assert (config.augment.flip, config.pp.exif) == (False, True)
    assert config.augment.crop_area == (0.1, 1.0)
    assert config.pretrained == "a=b.npz"


def test_the_config_is_locked():
    config, _ = read()
    with pytest.raises(AttributeError):
        config.bas_lr = 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--config.bas_lr=1", "there is no option 'bas_lr' in the config. Did you mean 'base_lr'?"),
        ("--config.crop=8", "there is no option 'crop' in the config. Did you mean 'pp.crop'?"),
        ("--config.zzz=1", "there is no option 'zzz' in the config. --help lists all options."),
        ("--config.batch=many", "--config.batch=many: invalid literal for int"),
        ("--config.batch", "--config.batch needs a value."),
        ("--config=gone.py", "gone.py: No such file or directory. The recipes that come with"),
        ("--config=quickstart.py:x", "quickstart.py: TypeError: get_config"),
        ("--config=vit.py:b17", "vit.py, line 24: No model 'b17'"),
        ("--config=.", "No such file or directory"),
        ("--config=", "--config is empty"),
        ("--config=--", "not a value"),
        ("--config.pp=3", "--config.pp=3"),
        ("--config.model.dtype=float8", "there is no option 'model.dtype'"),
        ("--config.seed=1e400", "--config.seed=1e400"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(option, message):
    with pytest.raises(ValueError) as caught:
        read(option)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_wrong_name_is_reported_at_once():
    with pytest.raises(ValueError, match=r"'bas_lr'.* Did you mean 'base_lr'\?.*'bach'"):
        read("--config.bas_lr=1", "--config.bach=2")


@pytest.mark.parametrize("name", ["vit.py", "configs/vit.py"])
def test_a_recipe_of_ours_is_found_from_any_directory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, _ = read("--config", f"{name}:l16,oxford_iiit_pet")
    assert (config.model.model_name, config.dataset) == ("ViT-L_16", "oxford_iiit_pet")


def test_a_file_that_is_there_comes_before_a_recipe_of_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vit.py").write_text(
        "from vit_jax.config import default_config\n"
        "def get_config(dataset):\n"
        "    config = default_config()\n"
        "    config.dataset = dataset\n"
        "    return config\n"
    )
    assert read("--config=vit.py:C:\\photos")[0].dataset == "C:\\photos"
    with pytest.raises(ValueError, match="No such file"):
        read("--config=elsewhere/vit.py")


def test_the_bare_quickstart_is_a_recipe():
    assert recipe.quickstart().dataset == "digits"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('no')", ", line 2: RuntimeError: no"),
        ("raise SystemExit(3)", ", line 2: SystemExit: 3"),
        ("raise ValueError('two\\nlines')", ", line 2: two lines"),
        ("open('/gone/file')", ", line 2: [Errno 2] No such file or directory: '/gone/file'"),
        ("def get_config(): return 1 / 0", ", line 2: ZeroDivisionError: division by zero"),
        ("def get_config(): get_config()", ", line 2: RecursionError: maximum recursion depth"),
        ("def get_config(", ", line 2: SyntaxError: '(' was never closed"),
        ("import there_is_no_such_module", ", line 2: ModuleNotFoundError: No module named"),
        ("int('x')\0", ": SyntaxError: source code"),
        ("get_config = 3", ": it has no function get_config"),
        ("def get_config(): pass", ": get_config returned a NoneType, not an ml_collections"),
        ("def get_config(): return {'batch': 3}", ": get_config returned a dict, not an ml_c"),
    ],
)
def test_a_recipe_may_raise_anything(body, message, tmp_path):
    (tmp_path / "mine.py").write_text(f'"""Mine."""\n{body}\n')
    with pytest.raises(ValueError) as caught:
        read(f"--config={tmp_path}/mine.py")
    assert str(caught.value).startswith(f"{tmp_path}/mine.py{message}")
    assert "\n" not in str(caught.value)


def test_ctrl_c_in_a_recipe_is_no_error(tmp_path):
    (tmp_path / "mine.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        read(f"--config={tmp_path}/mine.py")
