"""The reference against a loop over slots, and where slots stand."""

import numpy as np

from kernelbraid.kernels.operators.cases import Call, exact, load_reference
from kernelbraid.kernels.operators.operator import load_operator

OPERATOR = load_operator("moe_linear", "triton")
FULL, DECODE = (OPERATOR.entry(f"moe_linear_{path}_bf16") for path in ("full", "decode"))
DIMS = {"rows": 9, "each": 2, "in": 16, "out": 5, "experts": 4, "blocks": 6, "block": 64}


def test_each_slot_is_multiplied_with_the_weight_of_its_expert() -> None:
    # given
    inputs = load_reference(OPERATOR).make_inputs(FULL, DIMS, np.random.default_rng(0), "normal")

    # when
    y = load_reference(OPERATOR).reference(FULL, DIMS, inputs)["y"]

    # then every slot stands in one block, whose expert's weight it gets
    seen = set()
    for block, expert in zip(inputs["order"], inputs["block_expert"], strict=True):
        for slot in block[block < 18]:
            row, j = divmod(int(slot), 2)
            np.testing.assert_allclose(y[row, j], exact(inputs["w"])[expert] @ exact(inputs["x"])[row], rtol=1e-12)
            seen.add(int(slot))
    assert seen == set(range(18))


def test_rows_alone_and_in_other_blocks_are_parts_of_the_full_call() -> None:
    # given
    reference = load_reference(OPERATOR)
    inputs = reference.make_inputs(FULL, DIMS, np.random.default_rng(0), "normal")
    full = reference.reference(FULL, DIMS, inputs)

    # when
    agreements = list(reference.agreements(Call(FULL, DIMS, inputs), DECODE))

    # then
    assert {agreement.call.dims["block"] for agreement in agreements} == {64, 128}
    for agreement in agreements:
        call = agreement.call
        again = reference.reference(call.entry, call.dims, call.inputs)
        np.testing.assert_allclose(again["y"], full["y"][agreement.index], rtol=1e-12)
