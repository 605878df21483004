"""qk_norm in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import EPSILON, Arrays, RowWise, exact, styled_bfloat16
from kernelbraid.kernels.operators.operator import Entry

TOKENS = RowWise("tokens", ("q", "k"))
agreements, samples = TOKENS.agreements, TOKENS.samples


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """q [tokens, query_heads, head_dim], k [tokens, kv_heads, head_dim] and a weight [head_dim] for each, as uint16.

    Raises ValueError for an unknown style.
    """
    tokens, width = dims["tokens"], dims["head_dim"]
    return {
        "q": styled_bfloat16(rng, (tokens, dims["query_heads"], width), style),
        "k": styled_bfloat16(rng, (tokens, dims["kv_heads"], width), style),
        "q_weight": styled_bfloat16(rng, (width,), "normal"),
        "k_weight": styled_bfloat16(rng, (width,), "normal"),
    }


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """q_out and k_out in float64, shaped as q and k."""
    return {f"{name}_out": _normalised(exact(inputs[name]), exact(inputs[f"{name}_weight"])) for name in "qk"}


def _normalised(heads: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    inverse: NDArray[np.float64] = 1 / np.sqrt((heads * heads).mean(axis=-1, keepdims=True) + EPSILON)
    return heads * inverse * weight
