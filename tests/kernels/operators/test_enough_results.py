"""Checks compare so many bfloat16 results that another order of a sum on one path shows in one of them.

Of a million results some few differ (measured in numpy, on each operator's own inputs): a float32 sum that differs in
its last bit changes the rounding to bfloat16 of one result in 65,536. Results in float32 differ by the dozen, and need
no more than a few rows. A candidate may do it off the tiles alone, where no workload is, so that results count there.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import from_bfloat16, load_reference, to_bfloat16
from kernelbraid.kernels.operators.operator import ABSORBED, UNIT_ROWS, Operator, load_operator

TILE = 64
LEAST_EXPECTED = 5.0
"""Differing results: none of them is seen once in 150 audits, by Poisson."""


@dataclass(frozen=True)
class Risk:
    """How many results of a million another order, or a product that is rounded, changes where `off_tile` says so."""

    operator: str
    per_million: float
    off_tile: Callable[[Mapping[str, int]], bool]
    output: str = "y"
    entry: str = ""
    """Of the full path, where it is not the only one."""
    styles: tuple[str, ...] = ("normal", "scale_3", "scale_30", "cancellation")


def _odd(dim: str) -> Callable[[Mapping[str, int]], bool]:
    return lambda dims: dims[dim] % TILE != 0


RISKS = (
    # Of normal rows two to five: too few to be seen in less than two million.
    Risk("rms_norm", 500, _odd("hidden"), styles=(UNIT_ROWS,)),
    Risk("fused_add_rms_norm", 500, _odd("hidden"), styles=(UNIT_ROWS,)),
    Risk("qk_norm", 4000, _odd("head_dim"), "q_out", styles=(UNIT_ROWS,)),
    Risk("rope_store", 4000, _odd("head_dim"), "q_out", "qk_norm_rope_store_full_bf16", (UNIT_ROWS,)),
    # Of normal inputs 20 to 100 in a million.
    Risk("moe_combine", 50_000, lambda dims: dims["k"] != 8, styles=(ABSORBED,)),
    Risk("moe_linear", 50_000, _odd("in"), styles=(ABSORBED,)),
    Risk("linear", 50_000, _odd("in"), styles=(ABSORBED,)),
    Risk("attention", 39, lambda dims: dims["tokens"] % TILE != 0, "out", "attention_full_bf16"),
    Risk("attention", 39, lambda dims: dims["tokens"] % TILE != 0, "out", "attention_paged_bf16"),
    Risk("rope", 19, _odd("head_dim"), "q_out"),
    Risk("rope_store", 19, _odd("head_dim"), "q_out", "rope_store_full_bf16"),
    Risk("silu_and_mul", 11, _odd("inter")),
)


@pytest.mark.parametrize("risk", RISKS, ids=lambda risk: f"{risk.operator} {risk.entry}".strip())
def test_another_rounding_off_the_tiles_is_seen_by_the_declared_checks(risk: Risk) -> None:
    operator = load_operator(risk.operator, "triton")
    results = sum(_results(operator, risk))
    assert results * risk.per_million / 1e6 >= LEAST_EXPECTED, f"{results} results off the tiles"


def _results(operator: Operator, risk: Risk) -> list[int]:
    """Of every declared case off the tiles, how many are compared."""
    found = []
    for check in operator.checks:
        entry = operator.entry(check.full)
        if (not risk.entry or risk.entry == check.full) and risk.off_tile(check.dims):
            (output,) = (tensor for tensor in entry.outputs if tensor.name == risk.output)
            found.append(math.prod(output.resolve(check.dims)) * len(set(check.styles) & set(risk.styles)))
    return found


Floats = NDArray[np.float32]


def _tree(values: Floats) -> Floats:
    """The sum over the last axis in the order of a kernel's block: halves on halves."""
    width = 1 << (values.shape[-1] - 1).bit_length()
    total = np.zeros((*values.shape[:-1], width), np.float32)
    total[..., : values.shape[-1]] = values
    while width > 1:
        width //= 2
        total = total[..., :width] + total[..., width : 2 * width]
    return total[..., 0]


def _normalised(rows: Floats, weight: Floats, tail_apart: bool) -> Floats:
    squares = rows * rows
    whole = squares.shape[-1] // TILE * TILE
    total = _tree(squares[..., :whole]) + _tree(squares[..., whole:]) if tail_apart else _tree(squares)
    inverse = np.float32(1) / np.sqrt(total / np.float32(rows.shape[-1]) + np.float32(1e-6))
    return np.asarray(rows * inverse[..., None] * weight)


def _rms_norm(given: Mapping[str, Floats], other: bool) -> Floats:
    return _normalised(given["x"], given["weight"], other)


def _fused_add_rms_norm(given: Mapping[str, Floats], other: bool) -> Floats:
    return _normalised(_stored(given["x"] + given["residual"]), given["weight"], other)


def _qk_norm(given: Mapping[str, Floats], other: bool) -> Floats:
    return _normalised(given["q"], given["q_weight"], other)


def _moe_combine(given: Mapping[str, Floats], other: bool) -> Floats:
    """The slots from the first on, or the first half and the second."""
    total = [np.zeros_like(given["outputs"][:, 0]) for _ in range(2)]
    slots = given["outputs"].shape[1]
    for slot in range(slots):
        half = int(other and slot >= slots // 2)
        product = np.multiply(given["weights"][:, slot, None], given["outputs"][:, slot], dtype=np.float64)
        total[half] = (total[half] + product).astype(np.float32)
    return np.asarray(total[0] + total[1])


def _linear(given: Mapping[str, Floats], other: bool) -> Floats:
    """Sixteen products at a time, or sixty-four."""
    total, step = np.zeros((len(given["x"]), len(given["w"])), np.float32), 64 if other else 16
    for k in range(0, given["x"].shape[1], step):
        x, w = (given[name][:, k : k + step].astype(np.float64) for name in ("x", "w"))
        total += (x @ w.T).astype(np.float32)
    return total


def _stored(values: Floats) -> Floats:
    return from_bfloat16(to_bfloat16(values))


@pytest.mark.parametrize("work", [_rms_norm, _fused_add_rms_norm, _qk_norm, _moe_combine, _linear])
def test_the_largest_check_off_the_tiles_sees_another_order(
    work: Callable[[Mapping[str, Floats], bool], Floats],
) -> None:
    # given the inputs of an operator's largest declared case off the tiles
    risk = next(risk for risk in RISKS if f"_{risk.operator}" == work.__name__)
    operator = load_operator(risk.operator, "triton")
    odd = [item for item in operator.checks if risk.off_tile(item.dims) and risk.styles[0] in item.styles]
    check = max(odd, key=lambda item: math.prod(item.dims.values()))
    entry, rng = operator.entry(check.full), np.random.default_rng(5)
    drawn = load_reference(operator).make_inputs(entry, check.dims, rng, risk.styles[0])
    given = {name: from_bfloat16(values) if values.dtype == np.uint16 else values for name, values in drawn.items()}
    # when their sums are taken in two orders
    differ = int(np.count_nonzero(to_bfloat16(work(given, False)) != to_bfloat16(work(given, True))))
    # then enough results differ, and by far not all
    assert LEAST_EXPECTED <= differ < 0.5 * math.prod(operator.entry(check.full).outputs[0].resolve(check.dims))
