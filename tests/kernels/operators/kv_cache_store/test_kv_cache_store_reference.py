"""Which token is in which slot: inputs in which every slot stands once, and calls that store parts of a cache."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import Call, exact, load_reference
from kernelbraid.kernels.operators.operator import OperatorError, load_operator

OPERATOR = load_operator("kv_cache_store", "triton")
ENTRY = OPERATOR.entry("kv_cache_store_full_bf16")


@pytest.mark.parametrize(("tokens", "slots"), [(0, 0), (4, 0), (1, 1), (64, 64), (130, 129), (300, 257)])
def test_every_slot_is_written_by_one_token_and_by_what_it_holds(tokens: int, slots: int) -> None:
    # given
    reference = load_reference(OPERATOR)
    dims = {"tokens": tokens, "slots": slots, "kv_heads": 2, "head_dim": 3}
    inputs = reference.make_inputs(ENTRY, dims, np.random.default_rng(0), "normal")

    # when
    found = reference.reference(ENTRY, dims, inputs)

    # then
    mapping = inputs["slot_mapping"]
    assert sorted(mapping[mapping >= 0]) == list(range(slots))
    assert (mapping == -1).sum() == tokens - slots
    for name in "kv":
        expected = np.zeros((slots, 2, 3))
        expected[mapping[mapping >= 0]] = exact(inputs[name])[mapping >= 0]
        assert (found[f"{name}_cache"] == expected).all()


def test_a_slot_without_a_token_is_refused() -> None:
    dims = {"tokens": 3, "slots": 4, "kv_heads": 1, "head_dim": 2}
    with pytest.raises(OperatorError, match="4 slots need as many tokens"):
        load_reference(OPERATOR).make_inputs(ENTRY, dims, np.random.default_rng(0), "normal")


def test_calls_that_must_agree_have_padding_among_their_tokens() -> None:
    # given
    reference, dims = load_reference(OPERATOR), {"tokens": 12, "slots": 10, "kv_heads": 1, "head_dim": 4}
    call = Call(ENTRY, dims, reference.make_inputs(ENTRY, dims, np.random.default_rng(0), "normal"))

    # when
    agreements = list(reference.agreements(call, OPERATOR.entry("kv_cache_store_decode_bf16")))

    # then
    assert {agreement.output for agreement in agreements} == {"k_cache", "v_cache"}
    for agreement in agreements:
        assert (agreement.call.inputs["slot_mapping"] == -1).sum() == agreement.call.dims["slots"]


def test_every_declared_range_has_tokens_for_its_slots() -> None:
    def bounds(value: int | tuple[int, int]) -> tuple[int, int]:
        return value if isinstance(value, tuple) else (value, value)

    for hidden in OPERATOR.hidden:
        assert bounds(hidden.dims["slots"])[1] <= bounds(hidden.dims["tokens"])[0]
    for each in (*OPERATOR.checks, *OPERATOR.workloads):
        assert each.dims["slots"] <= each.dims["tokens"]
