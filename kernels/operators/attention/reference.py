"""Causal grouped-query attention in float64, its inputs, and the decode calls that must reproduce a full call.

Entries that return a log-sum-exp take ragged sequences, as on the GPU; those are varlen.py's.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.attention import varlen
from kernelbraid.kernels.operators.cases import Agreement, Arrays, Call, from_bfloat16, to_bfloat16
from kernelbraid.kernels.operators.operator import Entry

WHOLE_TOKENS = 300
"""Up to this length every row is decoded; beyond, a prompt is prefilled and only the response is decoded."""
RESPONSE_TOKENS = 33
CAUSAL_ROWS = 64
GROUP_TOKENS = 64
"""Neighbouring rows share one ragged decode call, whose cache is as long as the longest of them."""
MOST_UNUSED = 12000
"""Of one row's cache, where it is far larger than its context."""

Dims = Mapping[str, int]


def make_inputs(entry: Entry, dims: Dims, rng: np.random.Generator, style: str) -> Arrays:
    """Queries, keys and values of one style; decode adds ragged lengths and an unusable rest of the cache.

    Raises ValueError for an unknown style.
    """
    if _is_varlen(entry):
        return varlen.make_inputs(entry, dims, rng, style)
    shapes = {tensor.name: tensor.resolve(dims) for tensor in entry.inputs}
    values = _styled({name: shapes[name] for name in "qkv"}, rng, style)
    if entry.path == "full":
        return {name: _stored(entry, value) for name, value in values.items()}
    lengths = _ragged(dims["batch"], dims["capacity"], rng)
    unused = np.arange(dims["capacity"]) >= lengths[:, None]
    for name in "kv":
        values[name][unused] = np.nan
    return {**{name: _stored(entry, value) for name, value in values.items()}, "lengths": lengths}


def _is_varlen(entry: Entry) -> bool:
    return any(tensor.name == "lse" for tensor in entry.outputs)


def _styled(
    shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator, style: str
) -> dict[str, NDArray[np.float32]]:
    q, k, v = (rng.standard_normal(shapes[name], dtype=np.float32) for name in "qkv")
    match style:
        case "normal":
            pass
        case "scale_3" | "scale_30":
            q, v = q * np.float32(style[6:]), v * np.float32(style[6:])
        case "zeros":
            q, k, v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        case "equal_rows":
            q, k, v = (np.broadcast_to(_first_row(part), part.shape).copy() for part in (q, k, v))
        case "cancellation":
            q, k = _cancelling(q, k)
        case _:
            raise ValueError(f"unknown style {style}")
    return {"q": q, "k": k, "v": v}


def _first_row(values: NDArray[np.float32]) -> NDArray[np.float32]:
    row: NDArray[np.float32] = values.reshape(-1, values.shape[-1])[0]
    return row


def _cancelling(q: NDArray[np.float32], k: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Dot products whose halves are large and nearly opposite."""
    half = q.shape[-1] // 2
    large_q, large_k = 8 * q[..., :half], 8 * k[..., :half]
    return np.concatenate([large_q, q[..., half:] / 8 - large_q], -1), np.concatenate([large_k, large_k], -1)


def _ragged(batch: int, capacity: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Lengths from capacity down to five eighths of it, shuffled: the sum, and so the work, never varies."""
    spread = capacity - np.arange(batch) * (3 * capacity // 8) // batch
    return rng.permutation(spread).astype(np.int32)


def _stored(entry: Entry, values: NDArray[Any]) -> NDArray[Any]:
    return to_bfloat16(values) if entry.dtype == "bfloat16" else values.astype(np.float32)


def reference(entry: Entry, dims: Dims, inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """The output in float64, shaped like the entry's, from inputs widened exactly."""
    if _is_varlen(entry):
        return varlen.reference(entry, dims, inputs)
    q, k, v = (_widened(inputs[name]) for name in "qkv")
    if entry.path == "full":
        return {"out": np.stack([_causal(*sequence) for sequence in zip(q, k, v, strict=True)])}
    rows = [_attend(q[i][None], k[i, :n], v[i, :n], None)[0] for i, n in enumerate(inputs["lengths"])]
    return {"out": np.stack(rows)}


def _widened(values: NDArray[Any]) -> NDArray[np.float64]:
    return (from_bfloat16(values) if values.dtype == np.uint16 else values).astype(np.float64)


def _causal(q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Some rows at a time, each with the keys up to the last of them: about half of all pairs are never seen."""
    starts = range(0, len(q), CAUSAL_ROWS)
    parts = (slice(start, min(start + CAUSAL_ROWS, len(q))) for start in starts)
    return np.concatenate(
        [
            _attend(q[rows], k[: rows.stop], v[: rows.stop], np.tri(len(q[rows]), rows.stop, rows.start, dtype=bool))
            for rows in parts
        ]
    )


def _attend(
    q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64], seen: NDArray[np.bool_] | None
) -> NDArray[np.float64]:
    """q [rows, query_heads, head_dim], k and v [keys, kv_heads, head_dim], seen [rows, keys] or all.

    In place, as every new array of this size costs as much as the arithmetic on it.
    """
    rows, query_heads, head_dim = q.shape
    grouped = q.reshape(rows, k.shape[1], query_heads // k.shape[1], head_dim).transpose(1, 2, 0, 3)
    weights = grouped @ k.transpose(1, 2, 0)[:, None]
    weights /= math.sqrt(head_dim)
    if seen is not None:
        np.copyto(weights, -np.inf, where=~seen)
    weights -= weights.max(-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(-1, keepdims=True)
    outputs: NDArray[np.float64] = weights @ v.transpose(1, 0, 2)[:, None]
    return outputs.transpose(2, 0, 1, 3).reshape(q.shape)


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Everything that must reproduce `full`: decode for every row (or every response row), prefills, batches."""
    if _is_varlen(full.entry):
        yield from varlen.agreements(full, decode)
        return
    tokens = full.dims["tokens"]
    decoded = range(tokens) if tokens <= WHOLE_TOKENS else range(tokens - RESPONSE_TOKENS, tokens)
    for first in range(decoded.start, tokens, GROUP_TOKENS):
        yield _decoded(full, decode, _rows(full, range(first, min(first + GROUP_TOKENS, tokens))))
    for token in sorted({0, tokens // 2, tokens - 1}):
        yield _decoded(full, decode, [(full.dims["batch"] - 1, token)])
    if prompt := (2 * tokens // 3 if tokens <= WHOLE_TOKENS else decoded.start):
        yield _prefilled(full, slice(0, full.dims["batch"]), prompt)
    if full.dims["batch"] > 1:
        yield _prefilled(full, slice(1, 2), tokens)


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """Decode of two rows from anywhere."""
    if _is_varlen(full.entry):
        yield from varlen.samples(full, decode, rng)
        return
    rows = _rows(full, range(full.dims["tokens"]))
    for index in rng.permutation(len(rows))[:2].tolist():
        yield _decoded(full, decode, [rows[index]])


def extremes(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """The last token of every sequence in one decode call, two rows from anywhere, and a capacity far beyond one's."""
    if _is_varlen(full.entry):
        yield from varlen.extremes(full, decode, rng)
        return
    batch, last = full.dims["batch"], full.dims["tokens"] - 1
    yield _decoded(full, decode, [(place, last) for place in range(batch)])
    yield from samples(full, decode, rng)
    row = (int(rng.integers(batch)), last)
    yield _decoded(full, decode, [row], int(rng.integers(MOST_UNUSED // 2, MOST_UNUSED)))


def _rows(full: Call, tokens: range) -> list[tuple[int, int]]:
    return [(place, token) for token in tokens for place in range(full.dims["batch"])]


def _decoded(full: Call, decode: Entry, rows: Sequence[tuple[int, int]], unused: int = 3) -> Agreement:
    """One ragged decode call for some (place in the batch, token) of `full`, with so many keys more than any needs."""
    places, tokens = (np.array(column) for column in zip(*rows, strict=True))
    lengths = (tokens + 1).astype(np.int32)
    capacity = int(lengths.max()) + unused
    inputs = {name: _cache(full.inputs[name], places, lengths, capacity) for name in "kv"}
    inputs |= {"q": full.inputs["q"][places, tokens], "lengths": lengths}
    heads = {name: full.dims[name] for name in ("query_heads", "kv_heads", "head_dim")}
    call = Call(decode, {"batch": len(rows), "capacity": capacity, **heads}, inputs)
    return Agreement(call, "out", (places, tokens))


def _cache(values: NDArray[Any], places: NDArray[np.int64], lengths: NDArray[np.int32], capacity: int) -> NDArray[Any]:
    """A KV cache with each row's context, and NaN wherever the row must not look."""
    nan = 0x7FC0 if values.dtype == np.uint16 else np.nan
    cache = np.full((len(places), capacity, *values.shape[2:]), nan, values.dtype)
    for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
        cache[row, :length] = values[place, :length]
    return cache


def _prefilled(full: Call, places: slice, tokens: int) -> Agreement:
    """The full path again, on part of the batch and the first tokens only."""
    inputs = {name: np.ascontiguousarray(full.inputs[name][places, :tokens]) for name in "qkv"}
    dims = {**full.dims, "batch": len(inputs["q"]), "tokens": tokens}
    return Agreement(Call(full.entry, dims, inputs), "out", (places, slice(0, tokens)))
