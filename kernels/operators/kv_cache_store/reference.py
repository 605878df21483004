"""kv_cache_store, which rounds nothing: its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    Agreement,
    Arrays,
    Call,
    exact,
    row_batches,
    row_samples,
    styled_bfloat16,
)
from kernelbraid.kernels.operators.operator import Entry

PAGE_TOKENS = 64
PADDING = -1


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """k and v [tokens, kv_heads, head_dim] as uint16, and slot_mapping [tokens] in which every slot stands once.

    Tokens that no slot is left for are padding, anywhere among the others. Raises ValueError for an unknown style, and
    for more slots than tokens: a slot without a token would keep what the cache held.
    """
    tokens, slots = dims["tokens"], dims["slots"]
    if slots > tokens:
        raise ValueError(f"{slots} slots need as many tokens, and there are {tokens}")
    shape = (tokens, dims["kv_heads"], dims["head_dim"])
    mapping = np.full(tokens, PADDING, np.int64)
    mapping[np.sort(rng.permutation(tokens)[:slots])] = _paged(slots, rng)
    return {
        "k": styled_bfloat16(rng, shape, style),
        "v": styled_bfloat16(rng, shape, style),
        "slot_mapping": mapping,
    }


def _paged(slots: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Every slot, page by page in random order."""
    pages = rng.permutation(-(-slots // PAGE_TOKENS))
    every = (pages[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).reshape(-1)
    return every[every < slots]


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """k_cache and v_cache [slots, kv_heads, head_dim]."""
    order = token_of_slot(inputs["slot_mapping"], dims["slots"])
    return {f"{name}_cache": exact(inputs[name])[order] for name in "kv"}


def token_of_slot(mapping: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Which token each slot is written by."""
    return np.argsort(mapping, kind="stable")[len(mapping) - slots :]


def agreements(full: Call, decode: Entry) -> Iterator[Agreement]:
    """Tokens alone, all at once and in uneven batches, each batch into a cache of its own, with padding among them."""
    for batch in row_batches(full.dims["slots"]):
        yield from _stored(full, decode, np.arange(full.dims["slots"])[batch])
    yield from _stored(full, full.entry, np.arange(full.dims["slots"] // 2))


def samples(full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
    """A few slots from anywhere."""
    for slots in row_samples(full.dims["slots"], rng):
        yield from _stored(full, decode, slots)


def _stored(full: Call, entry: Entry, slots: NDArray[np.int64]) -> Iterator[Agreement]:
    """What stands in these slots, stored by a call that knows of no others; every other token of it is padding."""
    count = len(slots)
    tokens = np.repeat(token_of_slot(full.inputs["slot_mapping"], full.dims["slots"])[slots], 2)
    mapping = np.full(2 * count, PADDING, np.int64)
    mapping[::2] = np.arange(count)
    inputs = {"k": full.inputs["k"][tokens], "v": full.inputs["v"][tokens], "slot_mapping": mapping}
    call = Call(entry, {**full.dims, "tokens": 2 * count, "slots": count}, inputs)
    yield from (Agreement(call, tensor.name, (slots,)) for tensor in entry.outputs)
