"""What bfloat16 and int8 weights change: the size of the file, the accuracy, the predictions.

    python -m benchmarks.export CHECKPOINT --dataset cifar10 --tfds_data_dir DIR --split test

Each variant is exported, read back from its bytes and run over every example of the split.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from benchmarks import machine
from vit_jax import data, load
from vit_jax.evaluation.data_set import data_config
from vit_jax.exporting.quantize import WEIGHTS
from vit_jax.exporting.stablehlo import image_shape, portable_function, serialize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--dataset")
    parser.add_argument("--split")
    parser.add_argument("--tfds_data_dir")
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    classifier = load(options.checkpoint)
    given = {"pp.test": options.split, "tfds_data_dir": options.tfds_data_dir}
    given |= {"batch_eval": options.batch_size}
    config = data_config(classifier.card.data, options.dataset, given)
    source = data.open_source(config, config.pp.test, classifier.class_names)
    preprocessing = classifier.card.preprocessing
    batches = list(data.eval_batches(config, source, preprocessing=preprocessing))
    shape = image_shape(classifier)
    figures, reference = {}, None
    for weights in WEIGHTS:
        content = serialize(portable_function(classifier, weights), shape)
        probabilities, labels = run(bytearray(content), batches)
        reference = probabilities if reference is None else reference
        figures[weights] = {
            "bytes": len(content),
            "accuracy": round(float((probabilities.argmax(-1) == labels).mean()), 4),
            "same answer as float32": round(
                float((probabilities.argmax(-1) == reference.argmax(-1)).mean()), 4
            ),
            "largest change of a probability": round(
                float(np.abs(probabilities - reference).max()), 4
            ),
            "mean change of the best probability": round(
                float(np.abs(probabilities.max(-1) - reference.max(-1)).mean()), 5
            ),
        }
    figures = {
        "checkpoint": Path(options.checkpoint).name,
        "model": classifier.card.model.model_name,
        "data": f"{source.name} {source.split}: {len(source)} examples",
        "weights": figures,
        **machine.about(("jax", "flax", "numpy")),
    }
    print(json.dumps(figures, indent=1))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


def run(content: bytearray, batches) -> tuple[np.ndarray, np.ndarray]:
    call = jax.jit(jax.export.deserialize(content).call)
    rows = [
        (jax.nn.softmax(call(batch["image"]))[batch["mask"]], batch["label"][batch["mask"]])
        for batch in batches
    ]
    probabilities, labels = zip(*rows, strict=True)
    return np.concatenate(probabilities), np.concatenate(labels)


if __name__ == "__main__":
    main()
