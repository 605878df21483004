"""embedding, which rounds nothing: its inputs, and the calls that must reproduce parts of one another."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Arrays, RowWise, exact, styled_bfloat16
from kernelbraid.kernels.operators.operator import Entry

TOKENS = RowWise("tokens", ("ids",))
agreements, samples = TOKENS.agreements, TOKENS.samples


def make_inputs(entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
    """ids [tokens], first and last row of the table among them, and table [vocab, hidden] as uint16.

    Raises ValueError for an unknown style.
    """
    ids = rng.integers(0, dims["vocab"], dims["tokens"], np.int64)
    ids[1:2], ids[2:3] = 0, dims["vocab"] - 1
    return {"ids": ids, "table": styled_bfloat16(rng, (dims["vocab"], dims["hidden"]), style)}


def reference(entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
    """y [tokens, hidden]: the rows themselves."""
    return {"y": exact(inputs["table"][inputs["ids"]])}
