"""JSON from strangers: right, or one ValueError that names where it came from."""

import sys

import pytest

from vit_jax.untrusted import MAX_BYTES, MAX_DEPTH, as_path, parse_json, read_json


def nested(levels):
    return '{"a":' * levels + "1" + "}" * levels


def test_reads_an_object_from_a_file(tmp_path):
    file = tmp_path / "card.json"
    file.write_text('{"a": [1, {"b": null}]}')
    assert read_json(file) == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "card.json is empty"),
        (b' {"a": 1', "not readable JSON"),
        (b'{"a": "\xff"}', "not readable JSON"),
        (b"[]", "a JSON array where an object is needed"),
        (b"null", "a JSON null where an object is needed"),
        (b"1" * 5_000, "not readable JSON"),  # Python refuses so many digits
        (b"[" * 100_000, "nested deeper than"),
        (nested(MAX_DEPTH + 1).encode(), "nested deeper than"),
        (b" " * (MAX_BYTES + 1), "longer than the 32 MiB"),
    ],
)
def test_anything_else_is_one_error_that_names_the_file(tmp_path, text, problem):
    file = tmp_path / "card.json"
    file.write_bytes(text)
    with pytest.raises(ValueError, match=problem) as caught:
        read_json(file)
    assert str(file) in str(caught.value)


def test_the_deepest_allowed():
    assert parse_json(nested(MAX_DEPTH - 1), where="it")


def test_a_path_is_local_or_on_a_store_that_we_know(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert str(as_path("~/model.npz")) == "/home/me/model.npz"
    with pytest.raises(ValueError, match=r"http://x/model.npz is not a path that we know"):
        as_path("http://x/model.npz")
    monkeypatch.setitem(sys.modules, "fsspec", None)  # as where the extra is not installed
    with pytest.raises(ValueError, match=r"s3://b/model.npz needs pip install 'vit_jax\[gcs\]'"):
        as_path("s3://b/model.npz")
