"""tensorflow-datasets without TensorFlow: reading, preparing, converting, and what goes wrong."""

import io
import json
import shutil
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.data import eval_batches, open_source, split_sizes, train_batches
from vit_jax.data import tfds as our_tfds
from vit_jax.data.convert_tfrecord import convert
from vit_jax.data.decode import decode


class SelfMade(tfds.core.GeneratorBasedBuilder):
    """Three pictures with any number of classes, prepared without TensorFlow or a network."""

    VERSION = tfds.core.Version("1.0.0")

    @classmethod
    def get_metadata(cls):
        return tfds.core.dataset_metadata.DatasetMetadata("Test.", "", None, [])

    def _info(self):
        features = {
            "picture": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
            "kinds": tfds.features.Sequence(tfds.features.ClassLabel(names=["a", "b", "c"])),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for index in range(3):
            stream = io.BytesIO()
            Image.new("RGB", (8, 6), (index, 0, 0)).save(stream, "PNG")
            stream.seek(0)
            yield index, {"picture": stream, "kinds": list(range(index))}


class NeedsTensorflow(SelfMade):
    def _generate_examples(self):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
        yield


@pytest.fixture(scope="module")
def converted(golden, tmp_path_factory):
    """The recorded tfrecord data set, converted; a tfds data directory."""
    data_dir = tmp_path_factory.mktemp("converted")
    convert(golden / "data" / "tfrecord" / "tiny_pictures" / "1.0.0", data_dir)
    return data_dir


def test_a_converted_data_set_reads_end_to_end(converted, config_for):
    config = config_for("tiny_pictures", tfds_data_dir=str(converted))
    source = open_source(config)
    assert source.class_names == ("cat", "dog") and split_sizes(config) == {"train": 4, "test": 2}
    shapes = {decode(source[i].image).shape: source[i].label for i in range(4)}
    # The recording draws picture i with a width of 20 + i and class i % 2.
    assert shapes == {(24, 20 + i, 3): i % 2 for i in range(4)}
    assert next(train_batches(config))["image"].shape == (4, 8, 8, 3)


def test_images_are_raw_bytes(converted, config_for):
    source = open_source(config_for("tiny_pictures", tfds_data_dir=str(converted)))
    assert source[0].image[:3] == b"\xff\xd8\xff"


def test_a_prepared_directory_can_be_named_itself(converted, config_for):
    assert len(open_source(config_for(converted / "tiny_pictures" / "1.0.0"), "test")) == 2


def test_split_expressions_are_tfdss(converted, config_for):
    config = config_for("tiny_pictures", tfds_data_dir=str(converted))
    assert len(open_source(config, "train[25%:]+test[:1]")) == 4
    assert len(open_source(config, "all")) == 6


@pytest.mark.parametrize("split", ["validation", "train[3:1]", "train[", "train[:0]"])
def test_a_split_that_is_not_there_is_named(converted, config_for, split):
    config = config_for("tiny_pictures", tfds_data_dir=str(converted))
    with pytest.raises(ValueError, match="of tiny_pictures"):
        open_source(config, split)


def test_tfds_labels_follow_a_saved_class_map(converted, config_for):
    config = config_for("tiny_pictures", tfds_data_dir=str(converted))
    plain, turned = open_source(config), open_source(config, class_names=("dog", "cow", "cat"))
    assert [turned[i].label for i in range(4)] == [2 - 2 * plain[i].label for i in range(4)]
    with pytest.raises(ValueError, match="did not: 'dog'"):
        open_source(config, class_names=("cat", "cow"))


def test_a_set_that_needs_no_tensorflow_is_prepared_on_the_spot(tmp_path, config_for):
    source = open_source(config_for("self_made", tfds_data_dir=str(tmp_path)))
    assert source.multi_label and source.class_names == ("a", "b", "c")
    assert sorted(source[i].label for i in range(3)) == [(), (0,), (0, 1)]


def test_a_feature_that_is_no_label_is_refused(tmp_path, config_for):
    options = {"tfds_data_dir": str(tmp_path), "label_key": "picture"}
    with pytest.raises(ValueError, match=r"label_key=picture is not.*class labels: kinds"):
        open_source(config_for("self_made", **options))


def test_a_set_that_needs_tensorflow_says_how_to_prepare_it(tmp_path, config_for):
    with pytest.raises(ValueError) as failure:
        open_source(config_for("needs_tensorflow", tfds_data_dir=str(tmp_path)))
    message = str(failure.value)
    assert "vit_jax[prepare]" in message and "\n" not in message
    assert (
        f"tfds build needs_tensorflow --file_format=array_record --data_dir={tmp_path}" in message
    )


def test_files_to_download_by_hand_are_explained(tmp_path, config_for):
    with pytest.raises(ValueError, match=r"ILSVRC2012_img_train\.tar.*config\.tfds_manual_dir"):
        open_source(config_for("imagenet2012", tfds_data_dir=str(tmp_path)))


def test_offline_it_fails_before_tfds_tries_for_minutes(tmp_path, config_for, monkeypatch):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there: no network
    tried = mock.Mock()
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", tried)
    with pytest.raises(ValueError, match=r"mnist is not prepared in .* cannot be reached"):
        open_source(config_for("mnist", tfds_data_dir=str(tmp_path)))
    tried.assert_not_called()


def test_a_server_that_never_answers_cannot_be_reached(monkeypatch):
    asked, given_up = threading.Event(), threading.Event()

    def answer(*_, **__):
        asked.set()
        given_up.wait(timeout=60)  # whoever waits longer than it should gets an answer
        return io.BytesIO()

    monkeypatch.setattr("urllib.request.urlopen", answer)
    monkeypatch.setattr(our_tfds, "_REACH_SECONDS", 0.01)
    assert not our_tfds._reachable("https://example.com")
    given_up.set()
    assert asked.wait(timeout=60)


def test_a_misspelt_name_gets_a_suggestion(tmp_path, config_for):
    with pytest.raises(ValueError, match=r"'cifr10' is neither a folder.*Did you mean cifar10"):
        open_source(config_for("cifr10", tfds_data_dir=str(tmp_path)))


def test_an_unknown_version_or_config_is_refused(tmp_path, config_for):
    for name in ("cifar10:9.9.9", "cifar10/nope"):
        with pytest.raises(ValueError, match="cannot open"):
            open_source(config_for(name, tfds_data_dir=str(tmp_path)))


@pytest.mark.parametrize("by_path", [True, False])
def test_tfrecord_asks_to_be_converted(golden, config_for, by_path):
    data_dir = golden / "data" / "tfrecord"
    folder = data_dir / "tiny_pictures" / "1.0.0"
    name = folder if by_path else "tiny_pictures"
    with pytest.raises(ValueError) as failure:
        open_source(config_for(name, tfds_data_dir=str(data_dir)))
    assert f"python -m vit_jax.data.convert_tfrecord {folder} NEW_DATA_DIR" in str(failure.value)


def test_converting_keeps_every_record(golden, converted):
    import grain

    source = golden / "data" / "tfrecord" / "tiny_pictures" / "1.0.0"
    target = converted / "tiny_pictures" / "1.0.0"
    name = "tiny_pictures-train.{}-00000-of-00001"
    theirs = list(grain.experimental.TFRecordIterDataset(str(source / name.format("tfrecord"))))
    ours = grain.sources.ArrayRecordDataSource([str(target / name.format("array_record"))])
    assert [ours[i] for i in range(len(ours))] == theirs
    assert json.loads((target / "dataset_info.json").read_text())["fileFormat"] == "array_record"


def test_converting_refuses_what_it_cannot_do(golden, converted, tmp_path):
    recorded = golden / "data" / "tfrecord"
    with pytest.raises(ValueError, match=r"no dataset_info\.json.*did you mean .*tiny_pictures"):
        convert(recorded, tmp_path)
    with pytest.raises(ValueError, match="exists; remove it"):
        convert(recorded / "tiny_pictures" / "1.0.0", converted)
    with pytest.raises(ValueError, match="in the format array_record already"):
        convert(converted / "tiny_pictures" / "1.0.0", tmp_path)


def test_converting_a_damaged_set_leaves_nothing_behind(golden, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(golden / "data" / "tfrecord" / "tiny_pictures" / "1.0.0", damaged)
    shard = damaged / "tiny_pictures-train.tfrecord-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ValueError, match="tiny_pictures-train"):
        convert(damaged, tmp_path / "out")
    assert not (tmp_path / "out" / "tiny_pictures" / "1.0.0").exists()


@pytest.mark.shared
@pytest.mark.parametrize("batch", [1000, 999, 16_384])
def test_cifar10_test_yields_each_of_its_10000_examples_once(shared, config_for, batch):
    config = config_for("cifar10", tfds_data_dir=str(shared / "tfds"), batch_eval=batch)
    source = open_source(config, "test")
    counts = np.bincount([source[i].label for i in range(len(source))], minlength=10)
    for processes in (1, 2, 3):
        config.batch_eval = batch - batch % processes
        steps, seen = set(), np.zeros(10, int)
        for process in range(processes):
            options = {"process_index": process, "process_count": processes}
            batches = list(eval_batches(config, source, **options))
            steps.add(len(batches))
            for one in batches:
                seen += np.bincount(one["label"][one["mask"]], minlength=10)
        assert seen.sum() == 10_000 and (seen == counts).all() and len(steps) == 1


@pytest.mark.shared
@pytest.mark.parametrize(("name", "channels"), [("cifar10", 3), ("fashion_mnist", 1)])
def test_real_sets_train_end_to_end(shared, config_for, name, channels):
    config = config_for(name, tfds_data_dir=str(shared / "tfds"), **{"pp.channels": channels})
    config.pp.train = "train[:98%]"
    batch = next(train_batches(config))
    assert batch["image"].shape == (4, 8, 8, channels) and np.abs(batch["image"]).max() <= 1
    assert len(open_source(config)) == (49_000 if name == "cifar10" else 58_800)
    config.batch_eval = 512
    assert sum(batch["mask"].sum() for batch in eval_batches(config)) == 10_000


def test_tensorflow_and_torch_are_never_imported(converted):
    program = (
        "import sys; from vit_jax.config import default_config; from vit_jax import data\n"
        "c = default_config(); c.dataset = 'tiny_pictures'; c.tfds_data_dir = sys.argv[1]\n"
        "c.batch = 4; c.pp.crop = 8; next(data.train_batches(c))\n"
        "assert not {'tensorflow', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(converted)], check=True)
