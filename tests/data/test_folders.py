"""Folders and tables of images: what is found, and that a label means the same in every split."""

from pathlib import Path

import pytest

from vit_jax.data import open_source, split_sizes


def labels(source):
    return {
        example.path.rsplit("/", 1)[1]: example.label
        for example in map(source.__getitem__, range(len(source)))
    }


def test_a_folder_with_splits(numbered, config_for):
    source = open_source(config_for(numbered))
    assert source.class_names == ("class0", "class1") and not source.multi_label
    assert len(source) == 13 and split_sizes(config_for(numbered)) == {"test": 7, "train": 13}
    assert all(label == int(name.split(".")[0]) % 2 for name, label in labels(source).items())


def test_examples_are_the_files_bytes(numbered, config_for):
    example = open_source(config_for(numbered))[0]
    with Path(example.path).open("rb") as stream:
        assert example.image == stream.read()


def test_every_suffix_counts_in_any_case(tmp_path, write_image, config_for):
    names = ["a.jpg", "b.JPEG", "c.Png", "d.webp", "e.BMP", "f.gif", "g.JPG"]
    for name in names:
        write_image(tmp_path / "train" / "cat" / name)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "cat" / "._a.jpg").write_text("left by a Mac")
    assert sorted(labels(open_source(config_for(tmp_path)))) == sorted(names)


def test_nested_folders_and_links_belong_to_their_class(tmp_path, write_image, config_for):
    write_image(tmp_path / "elsewhere" / "far.png")
    write_image(tmp_path / "set" / "train" / "cat" / "2024" / "may" / "deep.png")
    (tmp_path / "set" / "train" / "cat" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "train" / "cat" / "one.png").symlink_to(tmp_path / "elsewhere" / "far.png")
    (tmp_path / "set" / "train" / "dog").symlink_to(tmp_path / "elsewhere")
    source = open_source(config_for(tmp_path / "set"))
    assert source.class_names == ("cat", "dog") and len(source) == 4


def test_a_link_in_a_circle_ends(tmp_path, write_image, config_for):
    write_image(tmp_path / "train" / "cat" / "a.png")
    (tmp_path / "train" / "cat" / "again").symlink_to(tmp_path / "train" / "cat")
    assert len(open_source(config_for(tmp_path))) == 1


def test_a_test_folder_that_lacks_a_class_keeps_its_labels(tmp_path, write_image, config_for):
    for name in ("ant", "bee", "cow"):
        write_image(tmp_path / "train" / name / "1.png")
    write_image(tmp_path / "test" / "cow" / "2.png")
    test = open_source(config_for(tmp_path), "test")
    assert test.class_names == ("ant", "bee", "cow") and test[0].label == 2


def test_a_saved_class_map_decides_over_the_folder(tmp_path, write_image, config_for):
    write_image(tmp_path / "train" / "bee" / "1.png")
    saved = ["zebra", "bee", "ant"]
    source = open_source(config_for(tmp_path), "train", saved)
    assert source.class_names == tuple(saved) and source[0].label == 1


def test_a_test_class_unknown_to_training_is_named(tmp_path, write_image, config_for):
    write_image(tmp_path / "train" / "ant" / "1.png")
    write_image(tmp_path / "test" / "yak" / "2.png")
    with pytest.raises(ValueError, match="has classes that training did not: 'yak'"):
        open_source(config_for(tmp_path), "test")


def test_a_slice_of_training_still_knows_every_class(tmp_path, write_image, config_for):
    for index in range(12):
        write_image(tmp_path / "train" / f"c{index}" / "1.png")
    config = config_for(tmp_path, **{"pp.train": "train[:2]"})
    assert len(open_source(config)) == 2 and len(open_source(config).class_names) == 12


def test_numbered_classes_sort_as_numbers(tmp_path, write_image, config_for):
    for name in ("10", "9", "1"):
        write_image(tmp_path / "train" / name / "1.png")
    assert open_source(config_for(tmp_path)).class_names == ("1", "9", "10")


def test_class_folders_alone_are_split_by_fraction(tmp_path, write_image, config_for):
    for index in range(30):
        write_image(tmp_path / f"c{index % 3}" / f"{index}.png")
    config = config_for(tmp_path, test_fraction=0.2)
    train, test = labels(open_source(config)), labels(open_source(config, "test"))
    assert len(train) == 24 and len(test) == 6 and not set(train) & set(test)
    assert sorted(test.values()) == [0, 0, 1, 1, 2, 2]
    assert labels(open_source(config, "test")) == test


def test_a_class_named_train_is_a_class(tmp_path, write_image, config_for):
    for name in ("car", "train"):
        write_image(tmp_path / name / "1.png")
        write_image(tmp_path / name / "2.png")
    assert open_source(config_for(tmp_path)).class_names == ("car", "train")


def test_slices_mix_classes(tmp_path, write_image, config_for):
    for index in range(40):
        write_image(tmp_path / "train" / f"c{index // 20}" / f"{index}.png")
    half = open_source(config_for(tmp_path), "train[:50%]")
    assert 4 < sum(labels(half).values()) < 16


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no images in class folders"),
        (["loose.png"], "has no images in class folders"),
        (["train/1.png", "test/2.png"], "has no images in class folders"),
    ],
)
def test_folders_without_classes_are_refused(tmp_path, write_image, config_for, files, message):
    for name in files:
        write_image(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        open_source(config_for(tmp_path), "test" if files else "train")


def test_a_training_class_without_images_is_named(tmp_path, write_image, config_for):
    write_image(tmp_path / "train" / "ant" / "1.png")
    (tmp_path / "train" / "bee").mkdir()
    with pytest.raises(ValueError, match="class folders without images: bee"):
        open_source(config_for(tmp_path))


def test_a_missing_split_names_those_there_are(tmp_path, write_image, config_for):
    write_image(tmp_path / "train" / "ant" / "1.png")
    write_image(tmp_path / "val" / "ant" / "2.png")
    with pytest.raises(ValueError, match=r"no split 'test'; it has train, val .*config\.pp\.test"):
        open_source(config_for(tmp_path), "test")


@pytest.mark.parametrize("name", ["/no/such/place", "~nobody_of_this_name/set"])
def test_a_missing_folder_is_named(config_for, name):
    with pytest.raises(ValueError, match=f"no folder or CSV/TSV file at {name}"):
        open_source(config_for(name))


@pytest.mark.parametrize(("suffix", "comma"), [("csv", ","), ("tsv", "\t"), ("CSV", ",")])
@pytest.mark.parametrize("header", [True, False])
def test_tables_of_path_and_label(tmp_path, write_image, config_for, suffix, comma, header):
    rows = [("path", "label")] if header else []
    for index in range(10):
        write_image(tmp_path / "images" / f"{index}.png")
        rows.append((f"images/{index}.png", "odd" if index % 2 else "even"))
    table = tmp_path / f"table.{suffix}"
    table.write_text("\n".join(comma.join(row) for row in rows) + "\n\n")
    config = config_for(table, test_fraction=0.0)
    source = open_source(config)
    assert source.class_names == ("even", "odd") and not source.multi_label
    assert all(label == int(name[0]) % 2 for name, label in labels(source).items())


def test_several_labels_make_a_multi_label_set(tmp_path, write_image, config_for):
    rows = ["path,label,split", "a.png,sea|sky,train", "b.png,sky,train", "c.png,,train"]
    rows.append("d.png,sea,test")
    for name in "abcd":
        write_image(tmp_path / f"{name}.png")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    source = open_source(config_for(tmp_path / "table.csv"))
    assert source.multi_label and source.class_names == ("sea", "sky")
    assert labels(source) == {"a.png": (0, 1), "b.png": (1,), "c.png": ()}
    test = open_source(config_for(tmp_path / "table.csv"), "test")
    assert test.multi_label and test[0].label == (0,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("path,class\na.png,x", "it needs path and label"),
        ("path,label\na.png", "needs 2 columns in every row; see lines 2"),
        ("path,label\na.png,x\nb.png,", "empty path or label in line 3"),
        ("path,label,split\na.png,x,train\nb.png,y,test", "has classes that training did not: 'y'"),
    ],
)
def test_tables_that_cannot_be_understood(tmp_path, config_for, text, message):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        open_source(config_for(tmp_path / "table.csv"), "all")


def test_a_missing_table_is_named(tmp_path, config_for):
    with pytest.raises(ValueError, match="there is no table at"):
        open_source(config_for(tmp_path / "none.csv"))


def test_a_single_file_is_not_a_data_set(tmp_path, write_image, config_for):
    write_image(tmp_path / "photo.png")
    with pytest.raises(ValueError, match=r"photo\.png is a single file; give the folder"):
        open_source(config_for(tmp_path / "photo.png"))


def test_what_is_no_table_says_where(tmp_path, config_for):
    (tmp_path / "set.csv").write_bytes(b"a.png," + b"x" * 200_000)
    with pytest.raises(ValueError, match=r"set\.csv is not a table, see line 1: field larger"):
        open_source(config_for(tmp_path / "set.csv"))
