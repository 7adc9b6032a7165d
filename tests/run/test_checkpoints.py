"""The checkpoints of a run, and those that older versions left."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from vit_jax import models
from vit_jax.checkpoint import Card
from vit_jax.run.checkpoints import RunCheckpoints
from vit_jax.training.state import TrainState

CARD = Card(models.get_model("testing", num_classes=3))


def some_state(step):
    params = {"head": {"kernel": jnp.arange(6.0).reshape(2, 3) + step}}
    state = TrainState.create(params, optax.sgd(0.1, momentum=0.9), with_ema=True)
    return state.replace(step=jnp.int32(step))


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_the_newest_state_comes_back(tmp_path):
    with RunCheckpoints(tmp_path, keep=2, best_metric="accuracy") as checkpoints:
        for step in (2, 4):
            checkpoints.save(step, some_state(step), card=CARD)
    with RunCheckpoints(tmp_path, keep=2, best_metric="accuracy") as checkpoints:
        assert_equal(checkpoints.restore(jax.eval_shape(some_state, 0)), some_state(4))
    assert {path.name for path in (tmp_path / "checkpoints" / "4").iterdir() if path.is_dir()} == {
        "state",
        "card",
    }


def test_the_newest_and_the_best_by_the_cards_metrics_are_kept(tmp_path):
    with RunCheckpoints(tmp_path, keep=1, best_metric="loss") as checkpoints:
        for step, loss in ((1, 0.5), (2, 0.1), (3, 0.3), (4, None)):
            metrics = {} if loss is None else {"loss": loss}
            card = dataclasses.replace(CARD, metrics=metrics)
            checkpoints.save(step, some_state(step), card=card)
        assert checkpoints.best_step == 2
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()}
    assert kept == {"2", "4"}


def test_a_step_with_the_place_in_the_data_still_resumes(tmp_path):
    """Until 0.1 a step had a third item, `data`, with the step to read next."""
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(some_state(3)),
            data=ocp.args.JsonSave({"next_step": 3}),
            card=ocp.args.JsonSave(CARD.to_json()),
        )
        manager.save(3, args=items)
    with RunCheckpoints(tmp_path, keep=1, best_metric="accuracy") as checkpoints:
        restored = checkpoints.restore(jax.eval_shape(some_state, 0))
        assert_equal(restored, some_state(3))
        checkpoints.save(4, some_state(4), card=CARD)
    assert not (tmp_path / "checkpoints" / "4" / "data").exists()
