"""The arithmetic of a model: multiply-adds, counted in its traced program (jaxpr)."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax.training.program import Program


def macs_per_image(program: Program) -> int:
    """Multiply-adds of one forward pass: matrix products and convolutions, nothing else."""
    images = jax.ShapeDtypeStruct((1, *program.image_shape), jnp.float32)
    params = program.abstract_state.params
    traced = jax.make_jaxpr(lambda p, x: program.model.apply({"params": p}, x))(params, images)
    return count_macs(traced.jaxpr)


def step_flops(program: Program) -> float:
    """FLOP of a train step: two per multiply-add, and a backward pass that costs two forward ones;
    with remat 'full' the blocks are computed once more.
    """
    passes = 4 if program.config.model.get("remat") == "full" else 3
    return 2.0 * passes * macs_per_image(program) * program.config.batch


def count_macs(jaxpr: core.Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name in _MACS:
            total += _MACS[equation.primitive.name](equation)
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += repeats * sum(map(count_macs, _inner(equation.params)))
    return total


def _dot(equation: core.JaxprEqn) -> int:
    left, result = _shape(equation.invars[0]), _shape(equation.outvars[0])
    contracted = equation.params["dimension_numbers"][0][0]
    return math.prod(result) * math.prod(left[i] for i in contracted)


def _conv(equation: core.JaxprEqn) -> int:
    kernel, result = _shape(equation.invars[1]), _shape(equation.outvars[0])
    outputs = equation.params["dimension_numbers"].rhs_spec[0]
    return math.prod(result) * math.prod(kernel) // kernel[outputs]


def _shape(operand: Any) -> tuple[int, ...]:
    return operand.aval.shape


_MACS = {"dot_general": _dot, "conv_general_dilated": _conv}


def _inner(params: Mapping[str, object]) -> list[core.Jaxpr]:
    """The programs inside an operation: the body of a scan, a jit, a remat, …"""
    values = [
        inner
        for value in params.values()
        for inner in (value if isinstance(value, list | tuple) else [value])
    ]
    closed = [v.jaxpr for v in values if isinstance(v, core.ClosedJaxpr)]
    return closed + [v for v in values if isinstance(v, core.Jaxpr)]
