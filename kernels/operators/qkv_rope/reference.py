"""qkv_rope in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    Agreement,
    Arrays,
    Call,
    exact,
    rounded,
    row_batches,
    row_samples,
    styled_bfloat16,
)
from kernelbraid.kernels.operators.operator import Entry

EPSILON, BASE, PADDING = 1e-6, 1_000_000.0, -1

Dims = Mapping[str, int]


def make_inputs(entry: Entry, dims: Dims, rng: np.random.Generator, style: str) -> Arrays:
    """qkv [tokens, heads, head_dim] as uint16, weights or bias, positions, the table, and for a cache the slots.

    Every slot stands once; tokens that no slot is left for are padding. Raises ValueError for an unknown style, and
    where heads are not query_heads + 2 * kv_heads.
    """
    tokens, width, heads = dims["tokens"], dims["head_dim"], dims["heads"]
    if heads != dims["query_heads"] + 2 * dims["kv_heads"]:
        raise ValueError(f"{heads} heads are not {dims['query_heads']} and twice {dims['kv_heads']}")
    drawn: dict[str, NDArray[Any]] = {
        "qkv": styled_bfloat16(rng, (tokens, heads, width), style),
        "q_weight": styled_bfloat16(rng, (width,), "normal"),
        "k_weight": styled_bfloat16(rng, (width,), "normal"),
        "bias": styled_bfloat16(rng, (heads, width), "normal"),
        "positions": rng.integers(0, dims["max_position"], tokens),
        "cos_sin": _table(dims["max_position"], width),
        "slot_mapping": _slots(tokens, dims.get("slots", 0), rng),
    }
    return {tensor.name: drawn[tensor.name] for tensor in entry.inputs}


def _table(positions: int, width: int) -> NDArray[np.float32]:
    angle = np.arange(positions)[:, None] * BASE ** -(np.arange(0, width, 2) / width)
    return np.concatenate((np.cos(angle), np.sin(angle)), axis=1).astype(np.float32)


def _slots(tokens: int, slots: int, rng: np.random.Generator) -> NDArray[np.int64]:
    mapping = np.full(tokens, PADDING, np.int64)
    taken = min(tokens, slots)
    mapping[np.sort(rng.permutation(tokens)[:taken])] = rng.permutation(slots)[:taken]
    return mapping


def reference(entry: Entry, dims: Dims, inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """Queries, keys and values in float64, by token or by slot."""
    qkv = exact(inputs["qkv"])
    if "bias" in inputs:
        qkv = rounded(qkv + exact(inputs["bias"]))
    q, k, v = np.split(qkv, np.cumsum([dims["query_heads"], dims["kv_heads"]]), axis=1)
    if "q_weight" in inputs:
        q, k = (rounded(_normalised(x, exact(inputs[f"{name}_weight"]))) for name, x in (("q", q), ("k", k)))
    cos, sin = np.split(inputs["cos_sin"].astype(np.float64)[inputs["positions"]][:, None], 2, axis=-1)
    rows = _token_of_slot(inputs["slot_mapping"], dims["slots"]) if "slot_mapping" in inputs else slice(None)
    return {"q_out": _turned(q, cos, sin), "k_out": _turned(k, cos, sin)[rows], "v_out": v[rows]}


def _token_of_slot(mapping: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Which token each slot is written by."""
    return np.argsort(mapping, kind="stable")[len(mapping) - slots :]


def _normalised(heads: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    inverse: NDArray[np.float64] = 1 / np.sqrt((heads * heads).mean(axis=-1, keepdims=True) + EPSILON)
    return heads * inverse * weight


def _turned(heads: NDArray[np.float64], cos: NDArray[np.float64], sin: NDArray[np.float64]) -> NDArray[np.float64]:
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Tokens alone, all at once and in uneven batches, each batch into a cache of its own, with padding among them."""
    for batch in row_batches(full.dims["tokens"]):
        yield from _stored(full, decode, np.arange(full.dims["tokens"])[batch])


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """A few tokens from anywhere."""
    for rows in row_samples(full.dims["tokens"], rng):
        yield from _stored(full, decode, rows)


def _stored(full: Call, decode: Entry, rows: NDArray[np.int64]) -> Iterator[Agreement]:
    """These tokens, each followed by itself as padding, stored into a cache in another order."""
    count = len(rows)
    tokens = np.repeat(rows, 2)
    mapping = np.full(2 * count, PADDING, np.int64)
    mapping[::2] = np.arange(count)[::-1]
    of_tokens = {name: full.inputs[name][tokens] for name in ("qkv", "positions")}
    inputs = {**full.inputs, **of_tokens, "slot_mapping": mapping}
    call = Call(decode, {**full.dims, "tokens": 2 * count, "slots": count}, inputs)
    yield Agreement(call, "q_out", (tokens,))
    yield Agreement(call, "k_out", (rows[::-1],))
    yield Agreement(call, "v_out", (rows[::-1],))
