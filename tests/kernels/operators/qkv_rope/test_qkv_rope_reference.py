"""The reference against those of the operators that it puts together."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import Call, exact, load_reference, rounded, to_bfloat16
from kernelbraid.kernels.operators.operator import OperatorError, load_operator

OPERATOR, QK_NORM, ROPE = (load_operator(name, "triton") for name in ("qkv_rope", "qk_norm", "rope"))
DIMS = {"tokens": 9, "heads": 7, "query_heads": 5, "kv_heads": 1, "head_dim": 72, "max_position": 300, "slots": 9}


@pytest.mark.parametrize("kind", ["qkv_rope", "qkv_bias_rope"])
def test_it_is_the_separate_operators_one_after_the_other(kind: str) -> None:
    # given
    entry = OPERATOR.entry(f"{kind}_full_bf16")
    inputs = load_reference(OPERATOR).make_inputs(entry, DIMS, np.random.default_rng(0), "normal")

    # when
    found = load_reference(OPERATOR).reference(entry, DIMS, inputs)

    # then
    summed = exact(inputs["qkv"]) + (exact(inputs["bias"]) if "bias" in inputs else 0)
    heads = to_bfloat16(rounded(summed))
    q, k, v = np.split(heads, [5, 6], axis=1)
    if "bias" not in inputs:
        norms = {name: inputs[name] for name in ("q_weight", "k_weight")}
        normed = load_reference(QK_NORM).reference(QK_NORM.entry("qk_norm_full_bf16"), DIMS, {"q": q, "k": k, **norms})
        q, k = (to_bfloat16(normed[f"{name}_out"]) for name in "qk")
    turn = {"q": q, "k": k, "positions": inputs["positions"], "cos_sin": inputs["cos_sin"]}
    turned = load_reference(ROPE).reference(ROPE.entry("rope_full_bf16"), DIMS, turn)
    np.testing.assert_array_equal(found["q_out"], turned["q_out"])
    np.testing.assert_array_equal(found["k_out"], turned["k_out"])
    np.testing.assert_array_equal(found["v_out"], exact(v))


@pytest.mark.parametrize("kind", ["qkv_rope", "qkv_bias_rope"])
def test_a_cache_holds_in_its_slots_what_the_full_call_gives_its_tokens(kind: str) -> None:
    # given
    reference = load_reference(OPERATOR)
    entry, decode = (OPERATOR.entry(f"{kind}_{path}_bf16") for path in ("full", "decode"))
    inputs = reference.make_inputs(entry, DIMS, np.random.default_rng(0), "normal")
    full = reference.reference(entry, DIMS, inputs)

    # when
    agreements = list(reference.agreements(Call(entry, DIMS, inputs), decode))

    # then
    assert {agreement.output for agreement in agreements} == {"q_out", "k_out", "v_out"}
    for agreement in agreements:
        call = agreement.call
        again = reference.reference(call.entry, call.dims, call.inputs)
        np.testing.assert_array_equal(again[agreement.output], full[agreement.output][agreement.index])


def test_heads_that_do_not_add_up_are_refused() -> None:
    # given
    entry = OPERATOR.entry("qkv_rope_full_bf16")

    # when / then
    with pytest.raises(OperatorError, match="8 heads are not 5 and twice 1"):
        load_reference(OPERATOR).make_inputs(entry, DIMS | {"heads": 8}, np.random.default_rng(0), "normal")
