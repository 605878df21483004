"""log_softmax_gather in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    Agreement,
    Arrays,
    Call,
    from_bfloat16,
    normal_bfloat16,
    row_batches,
    row_samples,
    to_bfloat16,
)
from kernelbraid.kernels.operators.operator import STYLES, Entry

SCALES = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}
LEFT_OUT = -100
"""The label that PyTorch's cross entropy leaves out, as any below 0 here."""


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """logits [tokens, vocab] in the entry's dtype (bfloat16 as uint16) and labels [tokens] int64.

    A label is any of the vocabulary, at every fifth token the likeliest, but never so at the first: against a
    log-probability near 0 no error would be small. Every seventh token is to be left out. In style cancellation the
    last third of the vocabulary is masked. Raises ValueError for an unknown style.
    """
    if style not in STYLES:
        raise ValueError(f"unknown style {style}")
    tokens, vocab = dims["tokens"], dims["vocab"]
    seen = vocab - vocab // 3 if style == "cancellation" else vocab
    logits = _logits(entry, (tokens, vocab), rng, style)
    labels = rng.integers(0, seen, tokens, np.int64)
    labels[5::5] = _widened(entry, logits[5::5]).argmax(axis=1)
    if tokens and labels[0] == _widened(entry, logits[0]).argmax():
        labels[0] = (labels[0] + 1) % seen
    labels[6::7] = LEFT_OUT
    return {"logits": logits, "labels": labels}


def _logits(entry: Entry, shape: tuple[int, int], rng: np.random.Generator, style: str) -> NDArray[Any]:
    if style == "normal" and entry.dtype == "bfloat16":
        return normal_bfloat16(rng, shape)
    logits = rng.standard_normal(shape, np.float32) * np.float32(SCALES.get(style, 1.0))
    if style == "equal_rows":
        logits[:] = logits[:1]
    if style == "cancellation":
        logits[:, ::7] *= np.float32(300)
        logits[:, shape[1] - shape[1] // 3 :] = -np.inf
    return to_bfloat16(logits) if entry.dtype == "bfloat16" else logits


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """logprobs and lse [tokens] in float64."""
    logits = _widened(entry, inputs["logits"]).astype(np.float64)
    largest = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - largest).sum(axis=1))
    labels = inputs["labels"]
    chosen = np.take_along_axis(logits - largest, np.maximum(labels, 0)[:, None], 1)[:, 0]
    return {"logprobs": np.where(labels < 0, 0.0, chosen - total), "lse": largest[:, 0] + total}


def _widened(entry: Entry, values: NDArray[Any]) -> NDArray[np.float32]:
    exact = from_bfloat16(values.view(np.uint16)) if entry.dtype == "bfloat16" else values
    return np.asarray(exact, np.float32)


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
    inputs = {name: values[batch] for name, values in full.inputs.items()}
    call = Call(entry, {**full.dims, "tokens": len(inputs["labels"])}, inputs)
    yield Agreement(call, "logprobs", (batch,))
    yield Agreement(call, "lse", (batch,))
