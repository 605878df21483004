"""Attention over ragged sequences and pages, as on the GPU: inputs, float64, and the calls that must agree.

Every entry is seen as sequences (`Sequence`): rows of q, and rows of k and v whose last ones are the queries' own. What
a cache holds beyond its sequences is NaN, and pages lie in random order.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Agreement, Arrays, Call, from_bfloat16, normal_bfloat16, to_bfloat16
from kernelbraid.kernels.operators.operator import Entry

NAN = 0x7FC0
CHUNK_ROWS = 128
"""Rows of scores that are held at once."""
MOST_DECODED = 48
MOST_KEYS = 16384
"""Of one decode call for many sequences."""
PAGES = (16, 64, 1, 48)
"""Tokens of a page in the decode calls that must agree, in turn; the last call has one page a sequence."""

Dims = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Rows of q [queries, heads, head_dim] and of k and v [keys, kv_heads, head_dim], by index."""

    q: NDArray[np.int64]
    kv: NDArray[np.int64]


def make_inputs(entry: Entry, dims: Dims, rng: np.random.Generator, style: str) -> Arrays:
    """Inputs of one style in the entry's dtypes. `ragged` sequences differ in length, and one has no queries.

    Raises ValueError for an unknown style.
    """
    shapes = {tensor.name: tensor.resolve(dims) for tensor in entry.inputs}
    placed = _placed(shapes, dims, rng)
    values = _styled({name: shapes[name] for name in "qkv"}, rng, style)
    inputs: dict[str, NDArray[Any]] = {**values, **placed}
    unused = np.ones(math.prod(shapes["k"][:-2]), bool)
    for sequence in sequences(inputs):
        unused[sequence.kv] = False
    for name in "kv":
        values[name].reshape(-1, *shapes[name][-2:])[unused] = NAN
    return inputs


def _placed(
    shapes: Mapping[str, tuple[int, ...]], dims: Dims, rng: np.random.Generator
) -> dict[str, NDArray[np.int32]]:
    """The integer inputs: where sequences begin, how long they are, which pages they have."""
    batch, ragged = dims["batch"], bool(dims["ragged"])
    placed: dict[str, NDArray[np.int32]] = {}
    if "table" in shapes:
        places = shapes["table"]
        placed["table"] = rng.permutation(dims["pages"])[: math.prod(places)].reshape(places).astype(np.int32)
    if "lengths" in shapes:
        capacity = dims["slots"] * dims["page_tokens"]
        spread = (3 * (capacity - dims["steps"]) // 8) * ragged
        return {**placed, "lengths": rng.permutation(capacity - np.arange(batch) * spread // batch).astype(np.int32)}
    count = rng.permutation(_divided(dims["tokens"], batch, ragged))
    placed |= {"query_count": count, "query_start": _starts(count)}
    if "table" in shapes:
        most = dims["slots"] * dims["page_tokens"]
        before = (most - count) // 2 + ragged * rng.permutation(np.arange(batch))
        return {**placed, "key_count": np.clip(count + before, count, most).astype(np.int32)}
    keys = count + rng.permutation(_divided(dims["keys"] - dims["tokens"], batch, ragged))
    return {**placed, "key_count": keys, "key_start": _starts(keys)}


def _divided(total: int, batch: int, ragged: bool) -> NDArray[np.int32]:
    """`total` in `batch` parts: equal ones, or from none at all to about three times the mean."""
    weights = np.arange(batch, dtype=float) ** 2 if ragged and batch > 1 else np.ones(batch)
    ends = np.floor(np.cumsum(weights) / weights.sum() * total + 1e-9).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int32)


def _starts(count: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.asarray(np.cumsum(count) - count, np.int32)


def _styled(
    shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator, style: str
) -> dict[str, NDArray[np.uint16]]:
    q, k, v = (normal_bfloat16(rng, shapes[name]) for name in "qkv")
    match style:
        case "normal":
            pass
        case "scale_3" | "scale_30":
            q, v = _scaled(q, float(style[6:])), _scaled(v, float(style[6:]))
        case "zeros":
            q, k, v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        case "equal_rows":
            q, k, v = (np.broadcast_to(part.reshape(-1, part.shape[-1])[:1], part.shape).copy() for part in (q, k, v))
        case "cancellation":
            q, k = _cancelling(q, k)
        case _:
            raise ValueError(f"unknown style {style}")
    return {"q": q, "k": k, "v": v}


def _scaled(values: NDArray[np.uint16], scale: float) -> NDArray[np.uint16]:
    return to_bfloat16(from_bfloat16(values) * np.float32(scale))


def _cancelling(q: NDArray[np.uint16], k: NDArray[np.uint16]) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Dot products whose halves are large and nearly opposite."""
    half = q.shape[-1] // 2
    first, second, large = from_bfloat16(q[..., :half]) * 8, from_bfloat16(q[..., half:]), _scaled(k[..., :half], 8)
    return to_bfloat16(np.concatenate([first, second / 8 - first], -1)), np.concatenate([large, large], -1)


def sequences(inputs: Arrays) -> Iterator[Sequence]:
    """The sequences of a call, in its order, whichever entry it is for."""
    if "lengths" in inputs:
        batch, steps = inputs["q"].shape[:2]
        for place in range(batch):
            rows = np.arange(place * steps, (place + 1) * steps)
            yield Sequence(rows, _paged_rows(inputs, place, int(inputs["lengths"][place])))
        return
    for place, (start, count) in enumerate(zip(inputs["query_start"], inputs["query_count"], strict=True)):
        keys = int(inputs["key_count"][place])
        rows = _paged_rows(inputs, place, keys) if "table" in inputs else inputs["key_start"][place] + np.arange(keys)
        yield Sequence(start + np.arange(count), rows)


def _paged_rows(inputs: Arrays, place: int, keys: int) -> NDArray[np.int64]:
    page_tokens, key = inputs["k"].shape[1], np.arange(keys)
    page = inputs["table"][place][key // page_tokens].astype(np.int64)
    return np.asarray(page * page_tokens + key % page_tokens, np.int64)


def reference(entry: Entry, dims: Dims, inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """out and lse in float64, shaped like the entry's; every row has at least one key."""
    q, k, v = (inputs[name].reshape(-1, *inputs[name].shape[-2:]) for name in "qkv")
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:-1])
    for sequence in sequences(inputs):
        keys, values = _widened(k[sequence.kv]), _widened(v[sequence.kv])
        for first in range(0, len(sequence.q), CHUNK_ROWS):
            rows = sequence.q[first : first + CHUNK_ROWS]
            own = len(keys) - len(sequence.q) + first + np.arange(len(rows))
            end = int(own[-1]) + 1
            out[rows], lse[rows] = _attend(_widened(q[rows]), keys[:end], values[:end], own)
    shapes = {tensor.name: tensor.resolve(dims) for tensor in entry.outputs}
    return {"out": out.reshape(shapes["out"]), "lse": lse.reshape(shapes["lse"])}


def _widened(values: NDArray[np.uint16]) -> NDArray[np.float64]:
    return from_bfloat16(values).astype(np.float64)


def _attend(
    q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64], own: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """q [rows, query_heads, head_dim] against k and v [keys, kv_heads, head_dim], row i up to key own[i]."""
    rows, query_heads, head_dim = q.shape
    grouped = q.reshape(rows, k.shape[1], query_heads // k.shape[1], head_dim).transpose(1, 2, 0, 3)
    scores = grouped @ k.transpose(1, 2, 0)[:, None] / math.sqrt(head_dim)
    scores = np.where(np.arange(len(k)) <= own[:, None], scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    out = (weights / total) @ v.transpose(1, 0, 2)[:, None]
    lse = (np.log(total) + top)[..., 0]
    return out.transpose(2, 0, 1, 3).reshape(q.shape), lse.transpose(2, 0, 1).reshape(rows, query_heads)


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Decode of single tokens, of several at a time and of rows of several sequences; prefills of the prompts alone."""
    every = list(sequences(full.inputs))
    rows = [(place, row) for place, sequence in enumerate(every) for row in range(len(sequence.q))]
    for number, chosen in enumerate(_chosen(rows)):
        yield from _decoded(full, decode, every, chosen, 1, PAGES[number % len(PAGES)])
    for place, sequence in enumerate(every):
        for steps in {min(len(sequence.q), steps) for steps in (2, 5, 16)} - {0, 1}:
            yield from _decoded(full, decode, every, [(place, len(sequence.q) - 1)], steps, 0)


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """Decode of two tokens from anywhere: each brings a cache as long as its own context."""
    every = list(sequences(full.inputs))
    rows = [(place, row) for place, sequence in enumerate(every) for row in range(len(sequence.q))]
    for index in rng.permutation(len(rows))[:2].tolist():
        yield from _decoded(full, decode, every, [rows[index]], 1, int(rng.choice(PAGES)))


def extremes(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """The last token of sequences with queries, many in one decode call, and two tokens from anywhere."""
    every = list(sequences(full.inputs))
    lasts = [(place, len(sequence.q) - 1) for place, sequence in enumerate(every) if len(sequence.q)]
    keys = max(len(sequence.kv) for sequence in every)
    some = [lasts[index] for index in sorted(rng.permutation(len(lasts))[: max(1, MOST_KEYS // keys)].tolist())]
    yield from _decoded(full, decode, every, some, 1, int(rng.choice(PAGES)))
    yield from samples(full, decode, rng)


def _chosen(rows: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Batches of rows: all of a short call, some of a long one, and the last one alone."""
    if not rows:
        return
    step = max(1, len(rows) // (4 * MOST_DECODED))
    some = sorted({*rows[::step], *rows[-MOST_DECODED:], *rows[:2]})
    yield from (some[first : first + MOST_DECODED] for first in range(0, len(some), MOST_DECODED))
    yield rows[-1:]


def _decoded(
    full: Call, decode: Entry, every: list[Sequence], rows: list[tuple[int, int]], steps: int, page_tokens: int
) -> Iterator[Agreement]:
    """A decode call that ends with each of these (sequence, row), `steps` rows each; page_tokens 0 is one page each."""
    known = [every[place].kv[: len(every[place].kv) - len(every[place].q) + row + 1] for place, row in rows]
    longest = max(map(len, known))
    page_tokens = page_tokens or longest + 3
    slots = -(-longest // page_tokens)
    index = np.stack([every[place].q[row - steps + 1 : row + 1] for place, row in rows])
    inputs = _cache(full.inputs, known, slots, page_tokens)
    q = full.inputs["q"]
    q = q if q.ndim == 3 else q.reshape(-1, *q.shape[-2:])
    inputs |= {"q": q[index], "lengths": np.array([len(keys) for keys in known], np.int32)}
    heads = {name: full.dims[name] for name in ("query_heads", "kv_heads", "head_dim")}
    dims = {"batch": len(rows), "steps": steps, "pages": len(inputs["k"]), "page_tokens": page_tokens, "slots": slots}
    call = Call(decode, {**dims, **heads, "ragged": 1}, inputs)
    yield from (Agreement(call, name, (index,)) for name in ("out", "lse"))


def _cache(inputs: Arrays, known: list[NDArray[np.int64]], slots: int, page_tokens: int) -> dict[str, NDArray[Any]]:
    """k, v and a table of pages that lie last to first, with NaN wherever a sequence must not look."""
    pages = len(known) * slots
    table = np.arange(pages, dtype=np.int32)[::-1].reshape(len(known), slots).copy()
    cache: dict[str, NDArray[Any]] = {"table": table}
    for name in "kv":
        rows = inputs[name].reshape(-1, *inputs[name].shape[-2:])
        cache[name] = np.full((pages, page_tokens, *rows.shape[1:]), NAN, np.uint16)
        for place, keys in enumerate(known):
            at = np.arange(len(keys))
            cache[name][table[place][at // page_tokens], at % page_tokens] = rows[keys]
    return cache
