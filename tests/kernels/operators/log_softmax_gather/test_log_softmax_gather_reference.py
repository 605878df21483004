"""The reference against the plain formula, and what its inputs must hold for the checks to mean something."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import from_bfloat16, load_reference
from kernelbraid.kernels.operators.operator import STYLES, Entry, load_operator

OPERATOR = load_operator("log_softmax_gather", "triton")
BF16, F32 = (OPERATOR.entry(f"log_softmax_gather_full_{dtype}") for dtype in ("bf16", "f32"))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("entry", [BF16, F32], ids=["bf16", "f32"])
def test_it_is_the_logarithm_of_a_softmax_wherever_that_is_not_zero(entry: Entry, style: str) -> None:
    # given
    reference, dims = load_reference(OPERATOR), {"tokens": 20, "vocab": 50}
    inputs = reference.make_inputs(entry, dims, np.random.default_rng(0), style)
    logits = from_bfloat16(inputs["logits"]) if entry is BF16 else inputs["logits"]

    # when
    found = reference.reference(entry, dims, inputs)

    # then
    raised = np.exp(logits.astype(np.longdouble))
    total = raised.sum(axis=1, keepdims=True)
    chosen = np.take_along_axis(raised / total, np.maximum(inputs["labels"], 0)[:, None], 1)[:, 0]
    expected = np.where(inputs["labels"] < 0, 0, np.log(chosen)).astype(np.float64)
    np.testing.assert_allclose(found["logprobs"], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["lse"], np.log(total[:, 0]).astype(np.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("style", STYLES)
def test_labels_are_unlikely_likeliest_and_left_out_but_never_masked(style: str) -> None:
    # given
    reference, dims = load_reference(OPERATOR), {"tokens": 40, "vocab": 60}

    # when
    inputs = reference.make_inputs(F32, dims, np.random.default_rng(0), style)

    # then
    found, labels = reference.reference(F32, dims, inputs), inputs["labels"]
    assert np.isfinite(found["logprobs"]).all()
    assert np.isfinite(found["lse"]).all()
    assert (labels == -100).sum() == 5
    assert labels[5] == inputs["logits"][5].argmax()
    assert np.isneginf(inputs["logits"]).any() == (style == "cancellation")
    assert style == "zeros" or labels[0] != inputs["logits"][0].argmax()


def test_the_logarithm_of_a_rounded_probability_is_refused() -> None:
    """Reported of kernels that agree with nobody: log(softmax) gives -inf where the label is unlikely."""
    # given
    reference, dims = load_reference(OPERATOR), {"tokens": 40, "vocab": 60}
    inputs = reference.make_inputs(F32, dims, np.random.default_rng(0), "scale_30")

    # when
    raised = np.exp(inputs["logits"] - inputs["logits"].max(axis=1, keepdims=True))
    probabilities = raised / raised.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        naive = np.log(np.take_along_axis(probabilities, np.maximum(inputs["labels"], 0)[:, None], 1))

    # then
    assert np.isneginf(naive).any()
    assert np.isfinite(reference.reference(F32, dims, inputs)["logprobs"]).all()
