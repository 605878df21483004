"""The reference against the formula of a model, in its dtypes, and against rms_norm."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import exact, load_reference, rounded, to_bfloat16
from kernelbraid.kernels.operators.operator import STYLES, load_operator

OPERATOR, ALONE = (load_operator(name, "triton") for name in ("fused_add_rms_norm", "rms_norm"))
ENTRY = OPERATOR.entry("fused_add_rms_norm_full_bf16")
DIMS = {"rows": 9, "hidden": 320}


@pytest.mark.parametrize("style", STYLES)
def test_it_is_the_models_formula_to_its_one_rounding_more(style: str) -> None:
    # given
    reference = load_reference(OPERATOR)
    inputs = reference.make_inputs(ENTRY, DIMS, np.random.default_rng(0), style)

    # when
    found = reference.reference(ENTRY, DIMS, inputs)

    # then a model adds, casts, normalises in float32, casts, and multiplies by the weight
    total = rounded(exact(inputs["x"]) + exact(inputs["residual"]))
    normal = rounded(total / np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-6))
    model = rounded(normal * exact(inputs["weight"]))
    largest = np.abs(model).max(axis=1, keepdims=True)
    assert (np.abs(found["y"] - model) <= 2**-7 * largest).all()
    assert (rounded(found["residual_out"]) == total).all()


def test_y_is_rms_norm_of_the_new_residual() -> None:
    # given
    reference, alone = load_reference(OPERATOR), load_reference(ALONE)
    inputs = reference.make_inputs(ENTRY, DIMS, np.random.default_rng(0), "normal")
    found = reference.reference(ENTRY, DIMS, inputs)

    # when
    of_sum = {"x": to_bfloat16(found["residual_out"]), "weight": inputs["weight"]}
    again = alone.reference(ALONE.entry("rms_norm_full_bf16"), DIMS, of_sum)

    # then
    np.testing.assert_allclose(found["y"], again["y"], rtol=1e-12, atol=1e-12)
