"""The reference against the formula of a model, in its dtypes, and where silu has its limits."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import exact, load_reference, rounded, to_bfloat16
from kernelbraid.kernels.operators.operator import STYLES, load_operator

OPERATOR = load_operator("silu_and_mul", "triton")
ENTRY = OPERATOR.entry("silu_and_mul_full_bf16")
DIMS = {"tokens": 5, "inter": 130}


@pytest.mark.parametrize("style", STYLES)
def test_it_is_the_models_formula_to_the_last_rounding(style: str) -> None:
    # given
    reference = load_reference(OPERATOR)
    inputs = reference.make_inputs(ENTRY, DIMS, np.random.default_rng(0), style)

    # when
    found = reference.reference(ENTRY, DIMS, inputs)["y"]

    # then a model rounds silu and the product
    gate, up = exact(inputs["gate_up"])[:, 0], exact(inputs["gate_up"])[:, 1]
    with np.errstate(over="ignore"):
        model = rounded(rounded(gate / (1 + np.exp(-gate))) * up)
    assert (rounded(found) == model).all()


def test_far_from_zero_the_gate_is_open_or_shut() -> None:
    values = np.array([-3e38, -1000.0, -90.0, 0.0, 90.0, 3e38])
    inputs = {"gate_up": to_bfloat16(np.stack((values, np.ones(6)))[None])}
    found = load_reference(OPERATOR).reference(ENTRY, {"tokens": 1, "inter": 6}, inputs)["y"][0]
    np.testing.assert_allclose(found, [0, 0, 0, 0, 90, rounded(values[5:])[0]], rtol=1e-12, atol=1e-30)
