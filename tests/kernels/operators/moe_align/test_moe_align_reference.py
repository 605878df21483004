"""The reference against a plain loop over slots."""

from collections.abc import Mapping

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import STYLES, load_operator

OPERATOR = load_operator("moe_align", "triton")
ENTRY = OPERATOR.entry("moe_align_full_i32")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("tokens", "block"), [(0, 4), (1, 1), (17, 16), (50, 3)])
def test_every_slot_lies_in_a_block_of_its_expert_and_in_its_own_order(tokens: int, block: int, style: str) -> None:
    # given more blocks than anybody needs
    reference = load_reference(OPERATOR)
    dims = {"tokens": tokens, "k": 3, "experts": 7, "blocks": tokens * 3 // block + 8, "block": block}
    ids = reference.make_inputs(ENTRY, dims, np.random.default_rng(0), style)["ids"]

    # when
    found = reference.reference(ENTRY, dims, {"ids": ids})

    # then
    order, block_expert, ends = by_hand(ids.reshape(-1).tolist(), dims)
    assert found["order"].reshape(-1).tolist() == order
    assert found["block_expert"].tolist() == block_expert
    assert found["ends"].tolist() == ends


def by_hand(ids: list[int], dims: Mapping[str, int]) -> tuple[list[int], list[int], list[int]]:
    """order, block_expert and ends, one expert after another."""
    order: list[int] = []
    block_expert: list[int] = []
    ends: list[int] = []
    for expert in range(dims["experts"]):
        own = [slot for slot, chosen in enumerate(ids) if chosen == expert]
        own += [len(ids)] * (-len(own) % dims["block"])
        order += own
        block_expert += [expert] * (len(own) // dims["block"])
        ends.append(len(order))
    unused = dims["blocks"] - len(block_expert)
    return order + [len(ids)] * unused * dims["block"], block_expert + [-1] * unused, ends


@pytest.mark.parametrize("style", STYLES)
def test_a_token_goes_to_different_experts_where_there_are_enough(style: str) -> None:
    # given
    dims = {"tokens": 20, "k": 8, "experts": 128, "blocks": 1, "block": 1}

    # when
    ids = load_reference(OPERATOR).make_inputs(ENTRY, dims, np.random.default_rng(0), style)["ids"]

    # then, unless all are to go to one
    assert ids.min() >= 0
    assert ids.max() < 128
    assert {len(set(row)) for row in ids.tolist()} == ({1} if style == "zeros" else {8})


def test_the_declared_shapes_have_blocks_enough_for_any_routing() -> None:
    """A candidate may leave out what does not fit; no check may ask for that."""
    shapes = [dict(workload.dims) for workload in OPERATOR.workloads]
    for hidden in OPERATOR.hidden:
        shapes += [
            {name: value if isinstance(value, int) else value[part] for name, value in hidden.dims.items()}
            | {"blocks": min(_both(hidden.dims["blocks"]))}
            for part in (0, 1)
        ]
    for dims in shapes:
        slots = dims["tokens"] * dims["k"]
        assert dims["blocks"] >= slots // dims["block"] + min(dims["experts"], slots), dims


def _both(bound: int | tuple[int, int]) -> tuple[int, int]:
    return (bound, bound) if isinstance(bound, int) else bound
