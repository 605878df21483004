"""The reference is its parts one after another, and reads them where the parts would store them."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import Call, load_reference, to_bfloat16
from kernelbraid.kernels.operators.operator import load_operator

OPERATOR = load_operator("rope_store", "triton")
DIMS = {"tokens": 12, "slots": 9, "query_heads": 6, "kv_heads": 2, "head_dim": 8, "max_position": 50}


@pytest.mark.parametrize("name", ["rope_store", "qk_norm_rope_store"])
def test_it_is_norm_rope_and_store(name: str) -> None:
    # given
    entry, reference = OPERATOR.entry(f"{name}_full_bf16"), load_reference(OPERATOR)
    inputs = dict(reference.make_inputs(entry, DIMS, np.random.default_rng(0), "normal"))

    # when
    found = reference.reference(entry, DIMS, inputs)

    # then
    norm, rope, store = (load_operator(part, "triton") for part in ("qk_norm", "rope", "kv_cache_store"))
    if name.startswith("qk_norm"):
        heads = load_reference(norm).reference(entry, DIMS, inputs)
        inputs |= {part: to_bfloat16(heads[f"{part}_out"]) for part in "qk"}
    turned = load_reference(rope).reference(entry, DIMS, inputs)
    cache = load_reference(store).reference(entry, DIMS, {**inputs, "k": to_bfloat16(turned["k_out"])})
    assert (found["q_out"] == turned["q_out"]).all()
    assert (to_bfloat16(found["k_cache"]) == to_bfloat16(cache["k_cache"])).all()
    assert (found["v_cache"] == cache["v_cache"]).all()


@pytest.mark.parametrize("name", ["rope_store", "qk_norm_rope_store"])
def test_parts_that_must_agree_are_the_tokens_of_their_slots(name: str) -> None:
    # given
    entry, reference = OPERATOR.entry(f"{name}_full_bf16"), load_reference(OPERATOR)
    call = Call(entry, DIMS, reference.make_inputs(entry, DIMS, np.random.default_rng(0), "normal"))
    whole = reference.reference(entry, DIMS, call.inputs)

    # when
    agreements = list(reference.agreements(call, OPERATOR.entry(f"{name}_decode_bf16")))

    # then
    assert {agreement.output for agreement in agreements} == {"q_out", "k_cache", "v_cache"}
    for agreement in agreements:
        part = reference.reference(agreement.call.entry, agreement.call.dims, agreement.call.inputs)
        np.testing.assert_array_equal(part[agreement.output], whole[agreement.output][agreement.index])
