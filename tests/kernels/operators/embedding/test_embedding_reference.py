"""Ids that reach both ends of the table, and rows as they are."""

import numpy as np

from kernelbraid.kernels.operators.cases import exact, load_reference
from kernelbraid.kernels.operators.operator import load_operator

OPERATOR = load_operator("embedding", "triton")
ENTRY = OPERATOR.entry("embedding_full_bf16")


def test_rows_are_those_of_the_ids_and_the_first_and_the_last_are_among_them() -> None:
    # given
    reference, dims = load_reference(OPERATOR), {"tokens": 9, "vocab": 50, "hidden": 6}
    inputs = reference.make_inputs(ENTRY, dims, np.random.default_rng(0), "normal")

    # when
    found = reference.reference(ENTRY, dims, inputs)["y"]

    # then
    assert {0, 49} <= set(inputs["ids"].tolist()) <= set(range(50))
    for token, row in enumerate(inputs["ids"]):
        assert (found[token] == exact(inputs["table"])[row]).all()
