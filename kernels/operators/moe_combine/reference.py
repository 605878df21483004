"""moe_combine in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    LARGE,
    Agreement,
    Arrays,
    Call,
    from_bfloat16,
    normal_bfloat16,
    row_batches,
    row_samples,
    to_bfloat16,
    two_places,
)
from kernelbraid.kernels.operators.operator import ABSORBED, STYLES, Entry

SCALES = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """outputs [tokens, k, hidden] bfloat16 (as uint16) and weights [tokens, k] float32 that add up to 1 in a token.

    Raises ValueError for an unknown style.
    """
    if style not in (*STYLES, ABSORBED):
        raise ValueError(f"unknown style {style}")
    shape = tuple(dims[name] for name in ("tokens", "k", "hidden"))
    weights = rng.random(shape[:2], np.float32) + np.float32(0.01)
    if style == "equal_rows":
        weights[:] = weights[:1]
    outputs = _outputs(shape, rng, "normal" if style == ABSORBED else style)
    if style == ABSORBED and dims["k"] > 1:
        _absorb(outputs, weights, rng)
    return {"outputs": outputs, "weights": weights / weights.sum(axis=1, keepdims=True)}


def _absorb(outputs: NDArray[np.uint16], weights: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Two slots of a token that weigh the same: large, opposite in every other result and equal in the rest."""
    tokens, slots, width = outputs.shape
    first, second = two_places(rng, tokens, slots)
    each, signs = np.arange(tokens), np.where(np.arange(width) % 2, -LARGE, LARGE)
    weights[each, second] = weights[each, first]
    outputs[each, first], outputs[each, second] = to_bfloat16(np.full(width, LARGE)), to_bfloat16(signs)


def _outputs(shape: tuple[int, ...], rng: np.random.Generator, style: str) -> NDArray[np.uint16]:
    if style == "normal":
        return normal_bfloat16(rng, shape)
    outputs = rng.standard_normal(shape, np.float32) * np.float32(SCALES.get(style, 1.0))
    if style == "equal_rows":
        outputs[:] = outputs[:1]
    if style == "cancellation":
        outputs[:, ::2] *= np.float32(300)
    return to_bfloat16(outputs)


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y [tokens, hidden] in float64."""
    outputs = from_bfloat16(inputs["outputs"].view(np.uint16)).astype(np.float64)
    return {"y": np.einsum("tk,tkh->th", inputs["weights"].astype(np.float64), outputs)}


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Every token alone, all at once, uneven batches, and the full path from another first token."""
    tokens = full.dims["tokens"]
    for batch in row_batches(tokens):
        yield _tokens_alone(full, decode, batch)
    yield _tokens_alone(full, full.entry, slice(tokens // 2, tokens))
    if tokens > 1:
        yield _tokens_alone(full, full.entry, slice(1, tokens))


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """A few tokens from anywhere, in batches of their own."""
    for tokens in row_samples(full.dims["tokens"], rng):
        yield _tokens_alone(full, decode, tokens)


def _tokens_alone(full: Call, entry: Entry, batch: slice | NDArray[np.int64]) -> Agreement:
    inputs = {name: values[batch] for name, values in full.inputs.items()}
    call = Call(entry, {**full.dims, "tokens": len(inputs["weights"])}, inputs)
    return Agreement(call, "y", (batch,))
