"""fused_add_rms_norm in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    EPSILON,
    Arrays,
    RowWise,
    exact,
    from_bfloat16,
    rounded,
    styled_bfloat16,
    to_bfloat16,
)
from kernelbraid.kernels.operators.operator import UNIT_ROWS, Entry

ROWS = RowWise("rows", ("x", "residual"))
agreements, samples = ROWS.agreements, ROWS.samples


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """x and residual [rows, hidden], weight [hidden]; bfloat16 as uint16. Raises ValueError for an unknown style."""
    shape = (dims["rows"], dims["hidden"])
    x, residual = (styled_bfloat16(rng, shape, style) for _ in range(2))
    if style == UNIT_ROWS:  # the sum is such a row: two halves of one
        x = residual = to_bfloat16(from_bfloat16(x) / 2)
    return {"x": x, "residual": residual, "weight": styled_bfloat16(rng, shape[1:], "normal")}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y and residual_out [rows, hidden] in float64; y is that of the rounded sum."""
    x, residual, weight = (exact(inputs[name]) for name in ("x", "residual", "weight"))
    total = rounded(x + residual)
    inverse = 1 / np.sqrt((total * total).mean(axis=1, keepdims=True) + EPSILON)
    return {"y": total * inverse * weight, "residual_out": x + residual}
