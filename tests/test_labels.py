"""The class names that ship with the package."""

import os

import pytest

from vit_jax import labels


@pytest.mark.parametrize("num_classes", [1_000, 21_843])
def test_imagenet_has_one_name_a_class_in_the_order_of_synsets(num_classes):
    names, synsets = labels.imagenet(num_classes)
    assert len(set(names)) == len(names) == num_classes
    assert synsets == sorted(synsets)


def test_well_known_classes_are_where_the_official_heads_have_them():
    names, synsets = labels.imagenet(1_000)
    known = {1: "goldfish", 207: "golden retriever", 281: "tabby", 323: "monarch", 963: "pizza"}
    assert {i: names[i] for i in known} == known
    large_names, large_synsets = labels.imagenet(21_843)
    assert set(synsets) - set(large_synsets) == {"n04399382"}  # the larger one has no teddy
    assert large_names[large_synsets.index("n01443537")] == "goldfish"


def test_a_head_of_another_size_is_not_imagenet():
    assert labels.imagenet(1_001) is None


def test_label_files_are_read_a_line_a_class(tmp_path):
    file = tmp_path / "labels.txt"
    file.write_text("cat\nDänische Dogge \n")
    assert labels.read(file, 2) == ["cat", "Dänische Dogge"]
    with pytest.raises(ValueError, match="has 2 names, but the model has 3 classes"):
        labels.read(file, 3)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        labels.read(tmp_path / "missing.txt", 2)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        labels.read(file, 2)


def test_a_label_file_that_is_none_is_one_error(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    for path, why in ((tmp_path / "fifo", "Not a regular file"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError, match=f"cannot be read: {why}"):
            labels.read(path, 2)
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="longer than the 32 MiB"):
        labels.read(tmp_path / "huge.txt", 2)


def test_label_files_are_utf8_whatever_the_locale(tmp_path, monkeypatch):
    (tmp_path / "labels.txt").write_bytes("\ufeffkatze\r\n中\n".encode())
    assert labels.read(tmp_path / "labels.txt", 2) == ["katze", "中"]
