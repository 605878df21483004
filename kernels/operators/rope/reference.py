"""rope in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Arrays, RowWise, exact, styled_bfloat16
from kernelbraid.kernels.operators.operator import Entry

BASE = 1_000_000.0
"""That of Qwen2.5 and Qwen3; a kernel is given the table and need not know it."""
TOKENS = RowWise("tokens", ("q", "k", "positions"))
agreements, samples = TOKENS.agreements, TOKENS.samples


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """q and k [tokens, heads, head_dim] as uint16, positions [tokens], and the table.

    Positions are those of sequences of random lengths, one after another. Raises ValueError for an unknown style.
    """
    tokens, width = dims["tokens"], dims["head_dim"]
    return {
        "q": styled_bfloat16(rng, (tokens, dims["query_heads"], width), style),
        "k": styled_bfloat16(rng, (tokens, dims["kv_heads"], width), style),
        "positions": _positions(tokens, dims["max_position"], rng),
        "cos_sin": cos_sin(dims["max_position"], width),
    }


def _positions(tokens: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    starts = rng.integers(0, most, tokens)
    first = np.maximum.accumulate(np.where(rng.random(tokens) < 0.1, np.arange(tokens), 0))
    return (starts[first] + np.arange(tokens) - first) % most


def cos_sin(positions: int, width: int) -> NDArray[np.float32]:
    """[positions, width]: the cosines of a position's width / 2 angles, then their sines, rounded once to float32."""
    frequency = BASE ** -(np.arange(0, width, 2) / width)
    angle = np.arange(positions)[:, None] * frequency
    return np.concatenate((np.cos(angle), np.sin(angle)), axis=1).astype(np.float32)


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """q_out and k_out in float64, shaped as q and k."""
    rows = inputs["cos_sin"].astype(np.float64)[inputs["positions"]][:, None]
    cos, sin = np.split(rows, 2, axis=-1)
    return {f"{name}_out": _rotated(exact(inputs[name]), cos, sin) for name in "qk"}


def _rotated(heads: NDArray[np.float64], cos: NDArray[np.float64], sin: NDArray[np.float64]) -> NDArray[np.float64]:
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
