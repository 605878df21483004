"""Reference of the test material: rows scaled by a vector and by a factor of their own."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Agreement, Arrays, Call
from kernelbraid.kernels.operators.operator import Entry

_SCALES = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """Normal values, scaled by the style."""
    values = {tensor.name: rng.standard_normal(tensor.resolve(dims), np.float32) for tensor in entry.inputs}
    if style == "equal_rows":
        values["x"][:] = values["x"][0]
    values["x"] *= np.float32(_SCALES.get(style, 1.0))
    return values


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """The products in float64."""
    x, w, f = (inputs[name].astype(np.float64) for name in "xwf")
    return {"y": x * w * f[:, None]}


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Every row alone, and the first half as one shorter full call."""
    for row in range(full.dims["rows"]):
        yield Agreement(_rows(full, decode, row, row + 1), "y", (slice(row, row + 1),))
    half = max(1, full.dims["rows"] // 2)
    yield Agreement(_rows(full, full.entry, 0, half), "y", (slice(0, half),))


def _rows(full: Call, entry: Entry, start: int, end: int) -> Call:
    inputs = {name: full.inputs[name][start:end] for name in "xf"} | {"w": full.inputs["w"]}
    return Call(entry, {**full.dims, "rows": end - start}, inputs)
