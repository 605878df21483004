"""Reference of the toy operator: rows times a vector."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Agreement, Arrays, Call
from kernelbraid.kernels.operators.operator import Entry


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """Normal values, or zeros."""
    factor = np.float32(0.0 if style == "zeros" else 1.0)
    return {tensor.name: factor * rng.standard_normal(tensor.resolve(dims), np.float32) for tensor in entry.inputs}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """The products in float64."""
    return {"y": inputs["x"].astype(np.float64) * inputs["w"].astype(np.float64)}


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Every row alone."""
    for row in range(full.dims["rows"]):
        inputs = {"x": full.inputs["x"][row : row + 1], "w": full.inputs["w"]}
        yield Agreement(Call(decode, {**full.dims, "rows": 1}, inputs), "y", (slice(row, row + 1),))
