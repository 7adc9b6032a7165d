"""Looking inside does not disturb what is looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import golden
from vit_jax import models


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "xla", "chunked"])
def test_everything_can_be_asked_for_whatever_the_kernel(kernel, scan):
    recorded = golden("vit_token")
    model = recorded.model(attention_kernel=kernel, scan=scan)
    outputs, inside = models.capture(model, recorded.params(), recorded.images)
    np.testing.assert_allclose(outputs, recorded.outputs, atol=1e-5)
    assert inside.patch_embedding.shape == (2, 4, 4, 32)
    assert [block.shape for block in inside.blocks] == [(2, 17, 32)] * 2
    assert [weights.shape for weights in inside.attention] == [(2, 4, 17, 17)] * 2
    np.testing.assert_allclose(inside.attention[1].sum(-1), 1, atol=1e-5)
    head = recorded.params()["head"]
    np.testing.assert_allclose(
        inside.pre_logits @ head["kernel"] + head["bias"], recorded.outputs, atol=1e-5
    )


def test_one_block_can_be_asked_for_alone():
    recorded = golden("vit_token")
    model, params = recorded.model(), recorded.params()
    _, every = models.capture(model, params, recorded.images)
    _, one = models.capture(model, params, recorded.images, blocks=[1])
    assert one.blocks[0] is None
    assert one.attention[0] is None
    np.testing.assert_allclose(one.attention[1], every.attention[1], atol=1e-6)


def test_captured_blocks_follow_from_each_other():
    recorded = golden("vit_token")
    params = recorded.params()
    _, inside = models.capture(recorded.model(), params, recorded.images)
    block = models.vit.EncoderBlock(mlp_dim=64, num_heads=4)
    second = block.apply(
        {"params": params["Transformer"]["encoderblock_1"]}, inside.blocks[0], train=False
    )
    np.testing.assert_allclose(second, inside.blocks[1], atol=1e-5)


def test_mixers_and_hybrids_can_be_looked_into():
    for name, num_attention in (("mixer", 0), ("hybrid", 2), ("vit_prelogits", 2)):
        recorded = golden(name)
        outputs, inside = models.capture(recorded.model(), recorded.params(), recorded.images)
        np.testing.assert_allclose(outputs, recorded.outputs, atol=1e-5)
        assert len(inside.blocks) == 2
        assert len(inside.attention) == num_attention


def test_the_ordinary_call_computes_no_attention_weights_twice():
    recorded = golden("vit_token")
    model, params = recorded.model(), recorded.params()

    def softmaxes(**options):
        def call(p):
            return model.apply({"params": p}, jnp.asarray(recorded.images), **options)

        return jax.jit(call).lower(params).as_text().count("stablehlo.exponential")

    assert softmaxes() == 2  # one a block
    assert softmaxes(mutable=["intermediates"]) == 4
