"""rms_norm in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    EPSILON,
    Agreement,
    Arrays,
    Call,
    from_bfloat16,
    row_batches,
    row_samples,
    to_bfloat16,
    unit_rows,
)
from kernelbraid.kernels.operators.operator import STYLES, UNIT_ROWS, Entry

SCALES = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """x [rows, hidden] and weight [hidden] in the entry's dtype (bfloat16 as uint16).

    Raises ValueError for an unknown style.
    """
    if style not in (*STYLES, UNIT_ROWS):
        raise ValueError(f"unknown style {style}")
    rows, hidden = dims["rows"], dims["hidden"]
    if style == UNIT_ROWS:
        weight = 1 + rng.standard_normal(hidden, np.float32) / 4
        return {"x": _stored(entry, from_bfloat16(unit_rows(rng, (rows, hidden)))), "weight": _stored(entry, weight)}
    x = rng.standard_normal((rows, hidden), np.float32) * np.float32(SCALES.get(style, 1.0))
    weight = 1 + rng.standard_normal(hidden, np.float32) / 4
    if style == "equal_rows":
        x[:] = x[0]
    if style == "cancellation":
        x[:, ::7] *= np.float32(300)
    return {"x": _stored(entry, x), "weight": _stored(entry, weight)}


def _stored(entry: Entry, values: NDArray[Any]) -> NDArray[Any]:
    return to_bfloat16(values) if entry.dtype == "bfloat16" else values.astype(np.float32)


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y [rows, hidden] in float64."""
    x, weight = (_widened(entry, inputs[name]) for name in ("x", "weight"))
    return {"y": x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * weight}


def _widened(entry: Entry, values: NDArray[Any]) -> NDArray[np.float64]:
    exact = from_bfloat16(values.view(np.uint16)) if entry.dtype == "bfloat16" else values
    return exact.astype(np.float64)


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Every row alone, all rows at once, uneven batches, and the full path from another first row."""
    rows = full.dims["rows"]
    for batch in row_batches(rows):
        yield _rows_alone(full, decode, batch)
    yield _rows_alone(full, full.entry, slice(rows // 2, rows))
    if rows > 1:
        yield _rows_alone(full, full.entry, slice(1, rows))


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """A few rows from anywhere, in batches of their own."""
    for rows in row_samples(full.dims["rows"], rng):
        yield _rows_alone(full, decode, rows)


def _rows_alone(full: Call, entry: Entry, batch: slice | NDArray[np.int64]) -> Agreement:
    inputs = {**full.inputs, "x": full.inputs["x"][batch]}
    call = Call(entry, {**full.dims, "rows": len(inputs["x"])}, inputs)
    return Agreement(call, "y", (batch,))
