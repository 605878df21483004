"""moe_align counted exactly, its inputs, and the calls that must reproduce one another."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Agreement, Arrays, Call
from kernelbraid.kernels.operators.operator import STYLES, Entry

OUTPUTS = ("order", "block_expert", "ends")


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """ids [tokens, k] int32, distinct in a token where there are experts enough.

    normal: each expert as likely; scale_3, scale_30, cancellation: some are liked far more, and others get nothing;
    zeros: all to expert 0; equal_rows: all tokens alike. Raises ValueError for an unknown style.
    """
    if style not in STYLES:
        raise ValueError(f"unknown style {style}")
    tokens, k, experts = (dims[name] for name in ("tokens", "k", "experts"))
    if style == "zeros":
        return {"ids": np.zeros((tokens, k), np.int32)}
    if k > experts:
        return {"ids": rng.integers(0, experts, (tokens, k), np.int32)}
    liked = rng.standard_normal(experts, np.float32) * np.float32(0 if style in ("normal", "equal_rows") else 4)
    scores = liked + rng.standard_normal((tokens, experts), np.float32)
    if style == "equal_rows":
        scores[:] = scores[:1]
    return {"ids": np.argsort(-scores, axis=1)[:, :k].astype(np.int32)}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """order [blocks, block], block_expert [blocks] and ends [experts], whole numbers in float64."""
    blocks, block, experts = (dims[name] for name in ("blocks", "block", "experts"))
    ids = inputs["ids"].reshape(-1)
    counts = np.bincount(ids, minlength=experts)
    used = -(-counts // block)
    ends, starts = np.cumsum(used), np.cumsum(used) - used
    order = np.full(blocks * block, ids.size, np.int64)
    by_expert = np.argsort(ids, kind="stable")
    rank = np.arange(ids.size) - np.repeat(np.cumsum(counts) - counts, counts)
    order[np.repeat(starts * block, counts) + rank] = by_expert
    block_expert = np.full(blocks, -1, np.int64)
    block_expert[: used.sum()] = np.repeat(np.arange(experts), used)
    exact = {"order": order.reshape(blocks, block), "block_expert": block_expert, "ends": ends * block}
    return {name: values.astype(np.float64) for name, values in exact.items()}


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """The same tokens through either entry: every number is exact, so that float64 sees the rest."""
    for entry in (decode, full.entry):
        call = Call(entry, full.dims, full.inputs)
        yield from (Agreement(call, name, (slice(None),)) for name in OUTPUTS)


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """The whole call through the decode entry."""
    call = Call(decode, full.dims, full.inputs)
    yield from (Agreement(call, name, (slice(None),)) for name in OUTPUTS)
