"""The reference against a loop over the experts' outputs, and what the order of the slots is worth."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Call, load_reference, to_bfloat16
from kernelbraid.kernels.operators.operator import load_operator

OPERATOR = load_operator("moe_combine", "triton")
ENTRY = OPERATOR.entry("moe_combine_full_bf16")


def test_it_is_a_weighted_sum_over_the_slots() -> None:
    # given two tokens with two experts each
    outputs = to_bfloat16(np.array([[[1, 2, 3], [4, 5, 6]], [[-1, 0, 1], [8, 8, 8]]], np.float32))
    weights = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)

    # when
    found = load_reference(OPERATOR).reference(
        ENTRY, {"tokens": 2, "k": 2, "hidden": 3}, {"outputs": outputs, "weights": weights}
    )

    # then
    assert found["y"].tolist() == [[3.25, 4.25, 5.25], [-1, 0, 1]]


def test_the_weights_of_a_token_add_up_to_one_and_an_agreement_takes_them_along() -> None:
    # given
    reference, dims = load_reference(OPERATOR), {"tokens": 9, "k": 8, "hidden": 16}
    inputs = reference.make_inputs(ENTRY, dims, np.random.default_rng(0), "normal")

    # when
    agreements = list(reference.agreements(Call(ENTRY, dims, inputs), OPERATOR.entry("moe_combine_decode_bf16")))

    # then
    np.testing.assert_allclose(inputs["weights"].sum(axis=1), 1, rtol=1e-6)
    for agreement in agreements:
        np.testing.assert_array_equal(agreement.call.inputs["weights"], inputs["weights"][agreement.index])


def test_another_order_of_the_slots_shows_in_the_checked_sizes() -> None:
    """Where it did not, a candidate could take the experts as they come."""
    # given the largest declared check
    reference = load_reference(OPERATOR)
    dims = max((check.dims for check in OPERATOR.checks), key=lambda dims: np.prod(list(dims.values())))
    inputs = reference.make_inputs(ENTRY, dims, np.random.default_rng(0), "normal")
    outputs = (inputs["outputs"].astype(np.uint32) << 16).view(np.float32)

    # when
    forwards, backwards = (
        _chain(outputs, inputs["weights"], slots) for slots in (range(dims["k"]), reversed(range(dims["k"])))
    )

    # then
    assert (to_bfloat16(forwards) != to_bfloat16(backwards)).sum() > 3


def _chain(outputs: NDArray[np.float32], weights: NDArray[np.float32], slots: Iterable[int]) -> NDArray[np.float32]:
    total = np.zeros((outputs.shape[0], outputs.shape[2]), np.float32)
    for slot in slots:
        exact = outputs[:, slot].astype(np.float64) * weights[:, slot, None]
        total = (exact + total).astype(np.float32)
    return total
