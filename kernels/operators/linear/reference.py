"""linear in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    Agreement,
    Arrays,
    Call,
    absorbed,
    from_bfloat16,
    row_batches,
    row_samples,
    to_bfloat16,
)
from kernelbraid.kernels.operators.operator import ABSORBED, STYLES, Entry

SCALES = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """x [rows, in] and w [out, in] in the entry's dtype (bfloat16 as uint16).

    Raises ValueError for an unknown style.
    """
    if style not in (*STYLES, ABSORBED):
        raise ValueError(f"unknown style {style}")
    rows, width, out = dims["rows"], dims["in"], dims["out"]
    x = rng.standard_normal((rows, width), np.float32) * np.float32(SCALES.get(style, 1.0))
    w = rng.standard_normal((out, width), np.float32) / np.float32(np.sqrt(width))
    if style == "equal_rows":
        x[:] = x[0]
    if style == "cancellation":
        _cancel(x, w, rng)
    if style == ABSORBED:
        absorbed(rng, x, w)
    return {"x": _stored(entry, x), "w": _stored(entry, w)}


def _stored(entry: Entry, values: NDArray[np.float32]) -> NDArray[Any]:
    return to_bfloat16(values) if entry.dtype == "bfloat16" else values.astype(np.float32)


def _cancel(x: NDArray[np.float32], w: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Make every other output a sum of pairs that nearly cancel; the rest keep the row's scale."""
    pairs = x.shape[1] // 2
    nearly = 1 + rng.standard_normal((x.shape[0], pairs), np.float32) / 1024
    x[:, 1 : 2 * pairs : 2] = -x[:, 0 : 2 * pairs : 2] * nearly
    w[1::2, 1 : 2 * pairs : 2] = w[1::2, 0 : 2 * pairs : 2]


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y [rows, out] in float64."""
    x, w = (_widened(entry, inputs[name]) for name in ("x", "w"))
    return {"y": x @ w.T}


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
