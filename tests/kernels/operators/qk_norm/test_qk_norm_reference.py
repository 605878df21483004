"""The reference against the formula of a model, in its dtypes."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import exact, load_reference, rounded
from kernelbraid.kernels.operators.operator import STYLES, load_operator

OPERATOR = load_operator("qk_norm", "triton")
ENTRY = OPERATOR.entry("qk_norm_full_bf16")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("head_dim", [64, 72, 128])
def test_it_is_the_models_formula_to_its_one_rounding_more(style: str, head_dim: int) -> None:
    # given
    reference, dims = load_reference(OPERATOR), {"tokens": 4, "query_heads": 7, "kv_heads": 1, "head_dim": head_dim}
    inputs = reference.make_inputs(ENTRY, dims, np.random.default_rng(0), style)

    # when
    found = reference.reference(ENTRY, dims, inputs)

    # then a model normalises a head in float32, casts, and multiplies by the weight
    for name in "qk":
        heads, weight = exact(inputs[name]), exact(inputs[f"{name}_weight"])
        model = rounded(rounded(heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 1e-6)) * weight)
        assert (np.abs(found[f"{name}_out"] - model) <= 2**-7 * np.abs(model).max(axis=2, keepdims=True)).all()


def test_queries_know_nothing_of_keys() -> None:
    # given two calls alike but for the keys
    reference, dims = load_reference(OPERATOR), {"tokens": 3, "query_heads": 2, "kv_heads": 2, "head_dim": 8}
    inputs = dict(reference.make_inputs(ENTRY, dims, np.random.default_rng(0), "normal"))

    # when
    found, other = (reference.reference(ENTRY, dims, {**inputs, "k": inputs[k]}) for k in "kq")

    # then
    assert (found["q_out"] == other["q_out"]).all()
    assert (found["k_out"] != other["k_out"]).any()
