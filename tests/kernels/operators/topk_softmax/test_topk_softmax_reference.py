"""The reference against routing as models write it: softmax in float32, the k largest, scaled or not."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import load_reference, to_bfloat16
from kernelbraid.kernels.operators.operator import STYLES, load_operator

OPERATOR = load_operator("topk_softmax", "triton")
DIMS = {"tokens": 40, "experts": 60, "k": 8}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("scaled", [True, False])
def test_it_is_the_models_formula_to_float32(scaled: bool, style: str) -> None:
    # given
    reference = load_reference(OPERATOR)
    entry = OPERATOR.entry("topk_softmax_full_f32" if scaled else "topk_probabilities_full_bf16")
    inputs = reference.make_inputs(entry, DIMS, np.random.default_rng(0), style)
    logits = inputs["logits"]
    logits = logits if scaled else (logits.astype(np.uint32) << 16).view(np.float32)

    # when
    found = reference.reference(entry, DIMS, inputs)

    # then the probabilities of the chosen are the largest there are
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = raised / raised.sum(axis=1, keepdims=True)
    largest = -np.sort(-probabilities, axis=1)[:, : DIMS["k"]]
    model = largest / largest.sum(axis=1, keepdims=True) if scaled else largest
    np.testing.assert_allclose(found["weights"], model, rtol=1e-5, atol=1e-7)
    at = found["ids"].astype(int)
    np.testing.assert_array_equal(np.take_along_axis(logits, at, 1), -np.sort(-logits, axis=1)[:, : DIMS["k"]])


def test_of_equal_logits_the_lower_expert_comes_first_and_minus_zero_is_zero() -> None:
    # given
    reference, entry = load_reference(OPERATOR), OPERATOR.entry("topk_softmax_full_bf16")
    logits = to_bfloat16(np.array([[-0.0, -1.0, 2.0, 0.0, 2.0], [0.0, -0.0, 0.0, -0.0, 0.0]], np.float32))

    # when
    found = reference.reference(entry, {"tokens": 2, "experts": 5, "k": 4}, {"logits": logits})

    # then
    assert found["ids"].tolist() == [[2, 4, 0, 3], [0, 1, 2, 3]]
    assert found["weights"][1].tolist() == [0.25] * 4


def test_the_inputs_have_ties_at_the_edge_of_the_choice() -> None:
    """Else the rule about them is never asked for."""
    # given
    reference, entry = load_reference(OPERATOR), OPERATOR.entry("topk_softmax_full_f32")
    dims = {"tokens": 30, "experts": 128, "k": 8}

    # when
    logits = reference.make_inputs(entry, dims, np.random.default_rng(0), "normal")["logits"]

    # then the last expert chosen is as good as the first that is not
    ranked = -np.sort(-logits, axis=1)
    assert (ranked[::3, 7] == ranked[::3, 8]).sum() >= 5
