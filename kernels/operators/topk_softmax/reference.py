"""topk_softmax in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    Agreement,
    Arrays,
    Call,
    from_bfloat16,
    row_batches,
    row_samples,
    to_bfloat16,
)
from kernelbraid.kernels.operators.operator import STYLES, Entry

SCALES = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}
RENORMALISED = "topk_softmax"
"""How the symbols of the entries begin whose weights of one token add up to 1."""


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """logits [tokens, experts] in the entry's dtype (bfloat16 as uint16). Every third token has many ties, -0 against
    0 among them.

    Raises ValueError for an unknown style.
    """
    if style not in STYLES:
        raise ValueError(f"unknown style {style}")
    logits = rng.standard_normal((dims["tokens"], dims["experts"]), np.float32)
    logits[::3] = np.round(logits[::3])
    logits *= np.float32(SCALES.get(style, 1.0))
    if style == "equal_rows":
        logits[:] = logits[:1]
    if style == "cancellation":
        logits[:, ::7] *= np.float32(300)
    return {"logits": to_bfloat16(logits) if entry.dtype == "bfloat16" else logits}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """weights and ids [tokens, k] in float64; the larger logit first, of equal ones the lower expert."""
    logits = _widened(entry, inputs["logits"])
    ids = np.argsort(-logits, axis=1, kind="stable")[:, : dims["k"]]
    largest = np.take_along_axis(logits, ids[:, :1], 1)
    chosen = np.exp(np.take_along_axis(logits, ids, 1) - largest)
    over = chosen if entry.symbol.startswith(RENORMALISED) else np.exp(logits - largest)
    return {"weights": chosen / over.sum(axis=1, keepdims=True), "ids": ids.astype(np.float64)}


def _widened(entry: Entry, values: NDArray[Any]) -> NDArray[np.float64]:
    exact = from_bfloat16(values.view(np.uint16)) if entry.dtype == "bfloat16" else values
    return exact.astype(np.float64)


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Every token alone, all at once, uneven batches, and the full path from another first token."""
    tokens = full.dims["tokens"]
    for batch in row_batches(tokens):
        yield from _tokens_alone(full, decode, batch)
    yield from _tokens_alone(full, full.entry, slice(tokens // 2, tokens))
    if tokens > 1:
        yield from _tokens_alone(full, full.entry, slice(1, tokens))


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """A few tokens from anywhere, in batches of their own."""
    for tokens in row_samples(full.dims["tokens"], rng):
        yield from _tokens_alone(full, decode, tokens)


def _tokens_alone(full: Call, entry: Entry, batch: slice | NDArray[np.int64]) -> Iterator[Agreement]:
    logits = full.inputs["logits"][batch]
    call = Call(entry, {**full.dims, "tokens": len(logits)}, {"logits": logits})
    yield Agreement(call, "weights", (batch,))
    yield Agreement(call, "ids", (batch,))
