"""Trains with `jax.pmap` written out, as code around google-research/vision_transformer does.

    python docs/examples/pmap.py [--steps 20]

`python -m vit_jax.train` needs none of this: its strategy `pmap` is `jax.jit` over a mesh whose
devices each hold a copy of the state. This is for those who have their own loop: the model, the
losses, the optimizer and the data are vit_jax's, the update is yours, and gradients are averaged by
`jax.lax.pmean` as ever.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import optax

from vit_jax import checkpoint, data, models
from vit_jax.cli import recipe
from vit_jax.training.losses import LOSSES, as_targets
from vit_jax.training.optim import make_optimizer
from vit_jax.training.step import accumulate_gradient


def make_update_fn(config, model, optimizer):
    """The reference's `make_update_fn`: one step on every device, with its share of the batch."""

    @functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0, 1))
    def update_fn(params, opt_state, batch, rng):
        def loss_fn(params, images, targets, rng):
            rngs = {"dropout": rng}
            logits = model.apply({"params": params}, images, train=True, rngs=rngs)
            return LOSSES[config.loss](logits, targets).mean()

        rng = jax.random.fold_in(rng, jax.lax.axis_index("batch"))  # other masks on each device
        targets = as_targets(batch["label"], model.num_classes)
        loss, grads = accumulate_gradient(
            jax.value_and_grad(loss_fn),
            params,
            batch["image"],
            targets,
            config.accum_steps,
            key=rng,
        )
        loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return update_fn


def train(config, num_steps: int) -> tuple[dict, list[float]]:
    """The parameters after some steps, and the losses on the way."""
    source = data.open_source(config)
    model = models.build_model(config.model.to_dict(), len(source.class_names))
    height, width = data.preprocessing(config).crop
    images = jnp.zeros((1, height, width, config.pp.channels))
    params = jax.jit(model.init)(jax.random.key(config.seed), images)["params"]
    if config.pretrained:
        params = checkpoint.load_pretrained(
            pretrained_path=config.pretrained, init_params=params, model_config=config.model
        )
    optimizer = make_optimizer(config, params)
    update_fn = make_update_fn(config, model, optimizer)

    devices = jax.local_device_count()

    def replicate(tree):
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (devices, *x.shape)), tree)

    params, opt_state = replicate(params), replicate(optimizer.init(params))
    losses = []
    for step, batch in zip(range(num_steps), data.train_batches(config, source), strict=False):
        shards = {name: x.reshape(devices, -1, *x.shape[1:]) for name, x in batch.items()}
        rngs = replicate(jax.random.fold_in(jax.random.key(config.seed), step))
        params, opt_state, loss = jax.block_until_ready(update_fn(params, opt_state, shards, rngs))
        losses.append(float(loss[0]))
    return jax.tree.map(lambda x: x[0], params), losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    _, losses = train(recipe.quickstart(), args.steps)
    for step, loss in enumerate(losses, start=1):
        print(f"step {step}  loss {loss:.4f}")


if __name__ == "__main__":
    main()
