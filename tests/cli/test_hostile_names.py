"""Files and classes may be called anything: shown as they are, never obeyed, and nothing stops."""

import csv
import dataclasses
import io
import json
import logging
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.reference import golden, load_with_card
from vit_jax import atomic, checkpoint, evaluate, explain, predict
from vit_jax.cli.contact_sheet import Cell, draw
from vit_jax.cli.progress import progress
from vit_jax.data import __main__ as data_command
from vit_jax.printable import Formatter, prepare_streams, printable

pytestmark = pytest.mark.usefixtures("no_compilation_cache")

NAMES = [
    "plain.png",
    "we[/b]ird [red].png",  # a folder `we[`
    "$x_$ $$.png",
    "=cmd|'calc'!A1.png",
    "'=x.png",
    "\x1b]0;owned\x07\x1b[31m.png",
    "line\nbreak\r.png",
    "\u202egnp.exe.png",
    "<script>alert(1)</script>.png".replace("/", "\\"),
    os.fsdecode(b"not\xffutf8.png"),
    "é 中 🐈.png",
    "x" * 251 + ".png",
    "中" * 83 + ".png",
]
CLASSES = ("[/b]", "$x_$", "=1+1", "\x1b[31mred\x1b[0m", "<script>alert(1)</script>\n\udcff\u202e")
UNSAFE = {"\x1b", "\x07", "\r", "\u202e", "\udcff", "\x9b"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    params, card = load_with_card(golden("vit_token").path)
    path = tmp_path_factory.mktemp("model") / "model.npz"
    checkpoint.save(params, path, card=dataclasses.replace(card, class_names=CLASSES))
    return str(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A data set of the model's classes, each with files of all the names."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    classes = [name.replace("/", "|") for name in CLASSES[:4]]
    sets = [f"set/{split}/{name}" for split in ("train", "test") for name in classes]
    for folder in ("photos", *sets):
        for name in NAMES if folder == "photos" else NAMES[:2]:
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_bytes(stream.getvalue())
    return sorted(f"photos/{name}" for name in NAMES)


def run(main, capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert not UNSAFE & set(said.out + said.err)
    return code, said.out, said.err


def test_what_is_printable_does_nothing_but_show():
    assert printable("a [b] é 中 🐈 \u200d") == "a [b] é 中 🐈 \u200d"
    assert printable("\x1b[31m\n\t\x9b\u202e\udcff\x7f") == r"\x1b[31m\n\t\x9b\u202e\udcff\x7f"
    assert printable(printable("\x1b")) == printable("\x1b")


def test_log_messages_keep_their_lines_and_obey_nothing():
    record = logging.LogRecord("x", logging.INFO, "", 0, "list:\n  %s", ("\x1b[2J",), None)
    assert Formatter().format(record) == "list:\n  \\x1b[2J"


def test_a_librarys_handler_obeys_nothing_either():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    factory = logging.getLogRecordFactory()
    try:
        prepare_streams()
        logging.getLogger("vit_jax.any").warning("%s\n%s", "\x1b[2J", "b")
    finally:
        logging.getLogger().removeHandler(handler)
        logging.setLogRecordFactory(factory)
    assert stream.getvalue() == "\\x1b[2J\nb\n"


def test_jsonl_has_every_name_exactly(model, photos, capsys):
    code, out, _ = run(predict.main, capsys, model, "photos", "--format=jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["file"] for row in rows] == photos
    assert {name for row in rows for name, _ in row["top"]} == set(CLASSES)


def test_csv_has_a_row_for_each_and_no_formula(model, photos, capsys, monkeypatch):
    monkeypatch.chdir("photos")
    code, out, _ = run(predict.main, capsys, model, ".", "--format=csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert len(rows) == len(out.splitlines()) - 1 == len(NAMES) * len(CLASSES)
    cells = {cell for row in rows for cell in (row["file"], row["class"])}
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    # one apostrophe less is the name
    assert {"'=cmd|'calc'!A1.png", "''=x.png", "'=1+1", "$x_$"} <= cells


@pytest.mark.parametrize(
    ("text", "cell"), [("-1", "-1"), ("+2.5", "+2.5"), ("-x", "'-x"), ("a", "a")]
)
def test_numbers_are_no_formulas(text, cell, capsys):
    predict.print_csv([("f", [(text, 0.5)])], 0)
    assert capsys.readouterr().out.splitlines()[1] == f"f,1,{cell},0.500000"


def test_a_table_has_a_line_for_each(model, photos, capsys):
    code, out, _ = run(predict.main, capsys, model, "photos", "--top_k=1")
    assert code == 0
    assert len(out.splitlines()) == 1 + len(NAMES)


def test_files_that_cannot_be_read_are_named_in_a_line_each(model, photos, capsys):
    for name in NAMES[1:]:
        Path("photos", name).write_bytes(b"no image")
    code, _, err = run(predict.main, capsys, model, "photos", "--format=jsonl")
    assert code == predict.EXIT_SOME_FAILED
    assert len(err.splitlines()) == len(NAMES) - 1
    code, _, err = run(explain.main, capsys, model, *(f"photos/{name}" for name in NAMES[1:]))
    assert code == 1
    assert len(err.splitlines()) == len(NAMES)


def test_names_come_from_standard_input_whatever_their_bytes(model, photos, capsys, monkeypatch):
    names = [name for name in photos if "\n" not in name]
    stdin = io.TextIOWrapper(io.BytesIO(os.fsencode("\n".join(names))), "utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    code, out, _ = run(predict.main, capsys, model, "-", "--format=jsonl")
    assert code == 0
    assert [json.loads(line)["file"] for line in out.splitlines()] == names


def test_features_and_contact_sheets_are_of_every_file(model, photos, capsys):
    code, _, _ = run(predict.main, capsys, model, "photos", "--features=\x1b[31m.npz")
    assert code == 0
    with np.load("\x1b[31m.npz") as written:
        assert written["files"].tolist() == photos
    code, _, _ = run(predict.main, capsys, model, "photos", f"--contact_sheet={'s' * 251}.png")
    assert code == 0
    with Image.open("s" * 251 + ".png") as sheet:
        assert len(np.unique(np.asarray(sheet).reshape(-1, 3), axis=0)) > 100


def test_a_cell_of_a_contact_sheet_takes_any_words():
    image = np.zeros((9, 9, 3), np.uint8)
    draw([[Cell(image, "a\nb\udcff", ["x" * 100_000, "\x1b[31m"])]])


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, _):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def test_explanations_show_names_and_run_none(model, photos, capsys):
    name = "<b>$x_$\n\x1b[31m\udcff" + "中" * 75 + ".png"
    Path(photos[0]).rename(name)
    code, _, err = run(explain.main, capsys, model, name, "--class=4")
    assert (code, err) == (0, "")
    assert len(list(Path("explanation").glob("*.png"))) == 7
    page = Page(Path("explanation/index.html").read_text("utf-8"))
    assert "b" not in page.tags and page.tags.count("script") == 1  # its own
    assert printable(name) in page.text
    assert set(map(printable, CLASSES)) <= set(page.text)


def test_evaluation_shows_names_and_writes_them_exactly(model, photos, capsys):
    options = ["--dataset=set", "--split=test"]
    renamed = [name.replace("/", "|") for name in CLASSES]
    Path("labels.txt").write_text("\n".join([*renamed[:4], "other"]), "utf-8")
    code, out, err = run(evaluate.main, capsys, model, *options, "--labels=labels.txt")
    assert err == ""
    assert code == 0
    assert r"\x1b[31mred\x1b[0m" in out
    written = json.loads(Path("evaluation/evaluation.json").read_text())
    assert written["classes"][:4] == renamed[:4]
    assert Path("evaluation/confusion_matrix.png").stat().st_size > 1000


def test_a_data_set_with_brackets_and_colons_is_shown(photos, capsys):
    Path("[").mkdir()
    Path("set").rename("[/b] :smile: \x1b[31m")
    argv = ["[/b] :smile: \x1b[31m", "--config.pp.crop=8", "--rows=2"]
    code, out, _ = run(data_command.main, capsys, *argv)
    assert code == 0
    assert r"[/b] :smile: \x1b[31m: test 8, train 8" in out
    assert "[|b]" in out


def test_a_bar_of_any_name_moves(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes anything for a terminal
    with progress("[/b] \x1b[31m", 3) as advance:
        advance(1)


def test_an_ascii_terminal_gets_what_it_can_show():
    """In a process of its own, whose streams really are ASCII."""
    program = [sys.executable, "-m", "vit_jax.predict", "--help"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "JAX_PLATFORMS": "cpu"}
    said = subprocess.run(program, env=env, capture_output=True)
    assert (said.returncode, said.stderr) == (0, b"")
    assert rb"IMAGE \u2026" in said.stdout


def test_jsonl_stays_json_on_an_ascii_terminal(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace")
    monkeypatch.setattr("sys.stdout", stream)
    predict.print_jsonl([("é 中.png", [("🐈", 0.5)])], 0)
    stream.flush()
    assert json.loads(stream.buffer.getvalue()) == {"file": "é 中.png", "top": [["🐈", 0.5]]}


# What is written stays beside what is there


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A directory, a FIFO, and links to a directory and to a device."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("fifo")
    Path("to_folder").symlink_to("folder")
    Path("to_device").symlink_to("/dev/full")
    return ["folder", "fifo", "to_folder", "to_device"]


def test_nothing_but_a_file_is_replaced(places):
    for name in places:
        before = os.lstat(name)
        with pytest.raises(OSError, match="is not a file to replace"), atomic.replacing(name) as it:
            it.write_text("x")
        assert os.lstat(name) == before
    assert sorted(map(str, Path().iterdir())) == sorted(places)


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    with atomic.replacing(tmp_path / "link") as partial:
        partial.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("option", ["--contact_sheet", "--features"])
def test_outputs_that_are_no_files_are_refused_before_the_work(
    model, photos, places, capsys, option
):
    for name in [*places, "/dev/null"]:
        code, out, err = run(predict.main, capsys, model, "photos", f"{option}={name}")
        assert (code, out) == (1, "")
        assert "give the name of a file to write" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["", "photos"],
        ["{model}", ""],
        ["{model}", "photos", "--features="],
        ["{model}", "photos", "--features", ""],
        ["{model}", "photos", "--labels="],
        ["{model}", "--", ""],
    ],
)
def test_an_empty_name_is_not_the_current_directory(model, photos, capsys, arguments):
    code, out, err = run(predict.main, capsys, *(word.format(model=model) for word in arguments))
    assert (code, out) == (1, "")
    assert "empty" in err.lower() and len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["~nobody_of_this_name/a.png", "a\0b.png", "x" * 5000])
def test_names_that_no_file_can_have_are_one_line(model, photos, capsys, name):
    code, _, err = run(predict.main, capsys, model, name)
    assert code == predict.EXIT_SOME_FAILED
    assert len(err.splitlines()) == 1
