"""What a program costs: collectives read from its text, multiply-adds from its trace."""

import pytest

from vit_jax.config import default_config
from vit_jax.models import full_model_config
from vit_jax.planning.collectives import Collective, find_collectives, summary
from vit_jax.planning.cost import macs_per_image, step_flops
from vit_jax.planning.report import PUBLISHED
from vit_jax.training.program import Program

HLO = """
  %all-gather.22 = bf16[768,1000]{1,0:T(8,128)(2,1)} all-gather(%param), channel_id=1
  %ar = (f32[8]{0}, f32[2,3]{1,0}) all-reduce(%a, %b), replica_groups={{0,1}}
  %cp = (f32[4,2]{1,0:S(1)}, f32[4,2]{1,0}, u32[]{:S(2)}, u32[]) collective-permute-start(%x)
  %done = f32[4,2]{1,0} collective-permute-done(%cp)
  %fusion = f32[8]{0} fusion(%all-gather.22), kind=kLoop
"""


def test_collectives_are_read_with_their_shapes_and_bytes():
    assert find_collectives(HLO) == [
        Collective("all-gather", (768, 1000), 2 * 768_000),
        Collective("all-reduce", (8,), 32),
        Collective("all-reduce", (2, 3), 24),
        Collective("collective-permute", (4, 2), 32),
    ]


def test_a_summary_counts_by_kind():
    assert summary(find_collectives(HLO))["all-reduce"] == {"count": 2, "bytes": 56, "largest": 32}


def program_of(name, **changes):
    config = default_config()
    config.model = full_model_config(name)
    config.model.update(changes)
    return Program(config, (224, 224, 3), 1000)


@pytest.mark.parametrize("name", PUBLISHED)
def test_multiply_adds_are_the_published_ones(name):
    published = PUBLISHED[name][1]
    macs = macs_per_image(program_of(name, scan=True)) / 1e9
    assert macs == pytest.approx(published, rel=0.02)  # they are rounded, and count biases or not


def test_a_scan_counts_as_often_as_it_runs_and_recomputing_as_a_pass():
    scanned, unrolled = program_of("ViT-Ti_16", scan=True), program_of("ViT-Ti_16")
    assert macs_per_image(scanned) == macs_per_image(unrolled)
    again = program_of("ViT-Ti_16", remat="full")
    assert step_flops(again) == pytest.approx(4 / 3 * step_flops(unrolled))


def test_hybrids_and_mixers_are_counted_too():
    # He et al. 2016 give 4.1 GMACs for a ResNet-50; R50+ViT-B_16 has three of its stages and a B
    assert 17e9 < macs_per_image(program_of("R50+ViT-B_16")) < 25e9
    assert macs_per_image(program_of("Mixer-B_16")) == pytest.approx(12.6e9, rel=0.02)
