"""moe_linear in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    Agreement,
    Arrays,
    Call,
    absorbed,
    exact,
    from_bfloat16,
    load_reference,
    row_batches,
    row_samples,
    styled_bfloat16,
    to_bfloat16,
)
from kernelbraid.kernels.operators.operator import ABSORBED, Entry, load_operator

OTHER_BLOCK = {64: 128, 128: 64}

Dims = Mapping[str, int]


def make_inputs(entry: Entry, dims: Dims, rng: np.random.Generator, style: str) -> Arrays:
    """x [rows, in] and w [experts, out, in] as uint16, and slots in blocks by expert, as moe_align lays them out.

    Raises ValueError for an unknown style.
    """
    width = dims["in"]
    x = styled_bfloat16(rng, (dims["rows"], width), "normal" if style == ABSORBED else style)
    w = rng.standard_normal((dims["experts"], dims["out"], width), np.float32) / np.float32(np.sqrt(width))
    if style == ABSORBED:
        values = from_bfloat16(x)
        absorbed(rng, values, w)
        x = to_bfloat16(values)
    ids = rng.integers(0, dims["experts"], (dims["rows"], dims["each"]), np.int32)
    return {"x": x, "w": to_bfloat16(w), **_laid_out(ids, dims)}


def _laid_out(ids: NDArray[np.int32], dims: Dims) -> Mapping[str, NDArray[np.int32]]:
    """order and block_expert for the experts ids [rows, each]."""
    align = load_operator("moe_align", "triton")
    entry, sizes = align.entry("moe_align_full_i32"), {**dims, "tokens": dims["rows"], "k": dims["each"]}
    found = load_reference(align).reference(entry, sizes, {"ids": ids})
    return {name: found[name].astype(np.int32) for name in ("order", "block_expert")}


def _experts(inputs: Arrays, dims: Dims) -> NDArray[np.int32]:
    """ids [rows, each] again, from where the slots stand."""
    slots = dims["rows"] * dims["each"]
    ids = np.zeros(slots + 1, np.int32)
    ids[inputs["order"]] = inputs["block_expert"][:, None]
    return ids[:slots].reshape(dims["rows"], dims["each"])


def reference(entry: Entry, dims: Dims, inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y [rows, each, out] in float64."""
    x, w, ids = exact(inputs["x"]), exact(inputs["w"]), _experts(inputs, dims)
    y = np.zeros((dims["rows"], dims["each"], dims["out"]))
    for expert in np.unique(ids):
        row, slot = np.nonzero(ids == expert)
        y[row, slot] = x[row] @ w[expert].T
    return {"y": y}


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Every row alone, all at once, uneven batches, in blocks of either size, and the full path with fewer rows."""
    rows = full.dims["rows"]
    for batch in row_batches(rows):
        yield _rows_alone(full, decode, np.arange(rows)[batch], 64)
    yield _rows_alone(full, full.entry, np.arange(rows // 2, rows), OTHER_BLOCK[full.dims["block"]])
    yield _rows_alone(full, decode, np.arange(rows), 128)


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """A few rows from anywhere, in batches of their own."""
    for rows in row_samples(full.dims["rows"], rng):
        yield _rows_alone(full, decode, rows, 64)


def _rows_alone(full: Call, entry: Entry, rows: NDArray[np.int64], block: int) -> Agreement:
    ids = _experts(full.inputs, full.dims)[rows]
    blocks = max(1, int((-(-np.bincount(ids.reshape(-1), minlength=1) // block)).sum()))
    dims = {**full.dims, "rows": len(rows), "block": block, "blocks": blocks}
    inputs = {"x": full.inputs["x"][rows], "w": full.inputs["w"], **_laid_out(ids, dims)}
    return Agreement(Call(entry, dims, inputs), "y", (rows,))
