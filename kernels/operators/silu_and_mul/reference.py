"""silu_and_mul in float64, its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Arrays, RowWise, exact, rounded, styled_bfloat16
from kernelbraid.kernels.operators.operator import Entry

TOKENS = RowWise("tokens", ("gate_up",))
agreements, samples = TOKENS.agreements, TOKENS.samples


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """gate_up [tokens, 2, inter] as uint16. Raises ValueError for an unknown style."""
    return {"gate_up": styled_bfloat16(rng, (dims["tokens"], 2, dims["inter"]), style)}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y [tokens, inter] in float64; silu is rounded to bfloat16 before the product."""
    gate, up = np.moveaxis(exact(inputs["gate_up"]), 1, 0)
    return {"y": rounded(gate * _sigmoid(gate)) * up}


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-np.maximum(values, -700)))
