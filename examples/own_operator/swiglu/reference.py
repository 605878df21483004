"""swiglu in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Agreement, Arrays, Call
from kernelbraid.kernels.operators.operator import STYLES, Entry

SCALES = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """x [rows, doubled] in float32.

    Raises ValueError for an unknown style.
    """
    if style not in STYLES:
        raise ValueError(f"unknown style {style}")
    x = rng.standard_normal((dims["rows"], dims["doubled"]), np.float32) * np.float32(SCALES.get(style, 1.0))
    if style == "equal_rows":
        x[:] = x[0]
    if style == "cancellation":
        x[:, 1::2] = -x[:, 1::2]
        x[:, ::3] *= np.float32(50)
    return {"x": x}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y [rows, width] in float64."""
    gate, up = np.split(inputs["x"].astype(np.float64), 2, axis=1)
    return {"y": gate / (1 + np.exp(-gate)) * up}


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Every row alone, and all rows at once."""
    rows = full.dims["rows"]
    for batch in [*(slice(row, row + 1) for row in range(rows)), slice(0, rows)]:
        inputs = {"x": full.inputs["x"][batch]}
        yield Agreement(Call(decode, {**full.dims, "rows": batch.stop - batch.start}, inputs), "y", (batch,))
