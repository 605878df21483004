"""rope_store in float64, its inputs, and the calls that must reproduce parts of one another.

Its parts are those of qk_norm, rope and kv_cache_store, whose references it asks.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import (
    Agreement,
    Arrays,
    Call,
    load_module,
    row_batches,
    row_samples,
    styled_bfloat16,
    to_bfloat16,
)
from kernelbraid.kernels.operators.operator import Entry

PADDING = -1
HERE = Path(__file__).parent
NORM, ROPE, STORE = (load_module(HERE.parent / name / "reference.py") for name in ("qk_norm", "rope", "kv_cache_store"))


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """q, k and v [tokens, heads, head_dim] as uint16, positions and slot_mapping [tokens], the table, and the weights
    [head_dim] where the entry takes them.

    Raises ValueError for an unknown style, and for more slots than tokens.
    """
    stored: Arrays = STORE.make_inputs(entry, dims, rng, style)
    turned: Arrays = ROPE.make_inputs(entry, dims, rng, style)
    weights = {f"{name}_weight": styled_bfloat16(rng, (dims["head_dim"],), "normal") for name in "qk"}
    return {tensor.name: {**stored, **turned, **weights}[tensor.name] for tensor in entry.inputs}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """q_out [tokens, query_heads, head_dim], k_cache and v_cache [slots, kv_heads, head_dim] in float64."""
    normal: dict[str, Any] = dict(inputs)
    if "q_weight" in inputs:
        heads = NORM.reference(entry, dims, inputs)
        normal |= {name: to_bfloat16(heads[f"{name}_out"]) for name in "qk"}
    turned = ROPE.reference(entry, dims, normal)
    order = STORE.token_of_slot(inputs["slot_mapping"], dims["slots"])
    cache = STORE.reference(entry, dims, inputs)
    return {"q_out": turned["q_out"], "k_cache": turned["k_out"][order], "v_cache": cache["v_cache"]}


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
    """What these slots' tokens give in a call of no others; every other token of it is padding."""
    count = len(slots)
    tokens = np.repeat(STORE.token_of_slot(full.inputs["slot_mapping"], full.dims["slots"])[slots], 2)
    mapping = np.full(2 * count, PADDING, np.int64)
    mapping[::2] = np.arange(count)
    taken = {name: full.inputs[name][tokens] for name in ("q", "k", "v", "positions")}
    dims = {**full.dims, "tokens": 2 * count, "slots": count}
    call = Call(entry, dims, {**full.inputs, **taken, "slot_mapping": mapping})
    yield from (
        Agreement(call, tensor.name, (tokens if tensor.name == "q_out" else slots,)) for tensor in entry.outputs
    )
