"""Shapes at the sizes that sources name: affordable, drawn again from their seed, and past every such size."""

import math
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.audit.sizes import BUDGETS, Drawn, Shape, Sizes
from kernelbraid.kernels.operators.operator import (
    CPU,
    Beyond,
    Operator,
    load_operator,
    operator_names,
    operator_targets,
)

RMS_NORM = load_operator("rms_norm")
RMS_SIZES = Sizes(RMS_NORM)
DECLARED = [(name, target) for name in operator_names() for target in operator_targets(name)]
NAMED = st.sets(st.integers(2, 1 << 45), max_size=12)
SMALL = st.sets(st.integers(2, 30000), max_size=12)
SEEDS = range(40)


def shape_bytes(shape: Shape) -> int:
    tensors = (*shape.full.inputs, *shape.full.outputs)
    return sum(math.prod(tensor.resolve(shape.dims)) * DTYPES[tensor.dtype].itemsize for tensor in tensors)


def lies_in(shape: Shape, beyond: Beyond) -> bool:
    if {*beyond.dims, *beyond.same} != set(shape.dims):
        return False
    ranges = {**beyond.dims, **{name: shape.dims[of] for name, of in beyond.same.items()}}
    ends = {name: (size, size) if isinstance(size, int) else size for name, size in ranges.items()}
    return all(low <= shape.dims[name] <= high for name, (low, high) in ends.items())


def of_f32(drawn: Drawn) -> list[dict[str, int]]:
    return [dict(shape.dims) for shape in drawn.shapes if shape.full.dtype == "float32"]


@given(SMALL | NAMED, st.integers(0, 1 << 63))
@settings(deadline=None)
def test_shapes_are_legal_affordable_and_follow_from_their_seed(named: set[int], seed: int) -> None:
    drawn, budget = RMS_SIZES.drawn_at(named, seed), BUDGETS[True]
    assert drawn == Sizes(RMS_NORM).drawn_at(named, seed)
    assert drawn.shapes
    assert all(any(lies_in(shape, beyond) for beyond in RMS_NORM.beyond) for shape in drawn.shapes)
    assert all(shape_bytes(shape) <= budget.shape_bytes for shape in drawn.shapes)
    assert sum(map(shape_bytes, drawn.shapes)) <= budget.bytes + budget.points * budget.shape_bytes
    assert len(drawn.shapes) <= budget.most_shapes + budget.points


@given(NAMED, st.integers(0, 1 << 63))
@settings(deadline=None)
def test_what_is_called_unreached_is_beyond_every_shape(named: set[int], seed: int) -> None:
    drawn = RMS_SIZES.drawn_at(named, seed)
    largest = max(math.prod(shape.dims.values()) for shape in drawn.shapes)
    assert all(size >= largest for size in drawn.unreached)
    dims = max(size for shape in drawn.shapes for size in shape.dims.values())
    assert all(size >= dims for size in drawn.products_only)
    assert set(drawn.unreached) | set(drawn.products_only) <= named
    assert not set(drawn.unreached) & set(drawn.products_only)


@pytest.mark.parametrize("size", [3, 400, 5000, 9999, 19998])
def test_every_audit_goes_past_a_number_of_rows_that_is_named(size: int) -> None:
    for seed in SEEDS:
        assert any(dims["rows"] > size for dims in of_f32(RMS_SIZES.drawn_at({size}, seed))), seed


@pytest.mark.parametrize("size", [4096, 6000, 11999])
def test_every_audit_goes_past_a_width_that_is_named(size: int) -> None:
    for seed in SEEDS:
        assert any(dims["hidden"] > size for dims in of_f32(RMS_SIZES.drawn_at({size}, seed))), seed


def test_every_audit_goes_past_a_product_that_is_named() -> None:
    for seed in SEEDS:
        assert any(math.prod(dims.values()) > 150000 for dims in of_f32(RMS_SIZES.drawn_at({150000}, seed))), seed


def test_every_audit_has_a_shape_between_two_sizes_that_are_named() -> None:
    for seed in SEEDS:
        found = of_f32(RMS_SIZES.drawn_at({5000, 7000}, seed))
        assert any(5000 < dims["rows"] < 7000 for dims in found), seed
        assert any(dims["rows"] > 7000 for dims in found), seed


@pytest.mark.parametrize("size", [777, 1234, 3001])
def test_every_audit_has_a_call_of_exactly_the_size_that_is_named(size: int) -> None:
    for seed in SEEDS:
        found = of_f32(RMS_SIZES.drawn_at({size}, seed))
        assert {name for dims in found for name in dims if dims[name] == size} == {"rows", "hidden"}, seed


def test_past_a_named_size_the_other_sizes_vary_and_are_mostly_odd() -> None:
    past = [dims for seed in range(80) for dims in of_f32(RMS_SIZES.drawn_at({4096}, seed)) if dims["rows"] > 4096]
    assert len({dims["hidden"] for dims in past}) > 10
    assert sum(dims["hidden"] % 2 for dims in past) > len(past) / 2
    assert max(dims["hidden"] for dims in past) > 30


def test_a_source_without_numbers_is_checked_past_the_declared_sizes_all_the_same() -> None:
    most_rows = max(check.dims["rows"] for check in RMS_NORM.checks)
    assert all(any(dims["rows"] > most_rows for dims in of_f32(RMS_SIZES.drawn_at((), seed))) for seed in SEEDS)


def test_a_size_that_is_not_named_and_one_of_forty_are_a_gamble() -> None:
    named = range(500, 20000, 500)
    hidden = [any(dims["rows"] >= 5000 for dims in of_f32(RMS_SIZES.drawn_at((), seed))) for seed in range(80)]
    among = [any(5000 <= d["rows"] < 5500 for d in of_f32(RMS_SIZES.drawn_at(named, seed))) for seed in range(80)]
    assert 0.25 < sum(hidden) / 80 < 0.6
    assert 0.03 < sum(among) / 80 < 0.2


def test_sizes_that_declared_checks_lie_beyond_cost_no_shape() -> None:
    without = [len(RMS_SIZES.drawn_at((), seed).shapes) for seed in SEEDS]
    covered = [len(RMS_SIZES.drawn_at({2}, seed).shapes) for seed in SEEDS]
    assert sum(covered) <= 1.1 * sum(without)


def test_the_evidence_says_what_was_drawn_and_what_no_shape_reaches() -> None:
    drawn = RMS_SIZES.drawn({"a.c": "if (n > 5000 || n > 300000 || n > 1 << 30) f();"}, 7)
    assert str(drawn).startswith("sizes of seed 7; rms_norm_full_f32 (rows x hidden) ")
    told = [f"{shape.dims['rows']}x{shape.dims['hidden']}" for shape in drawn.shapes]
    assert re.findall(r"\d+x\d+", str(drawn)) == told
    assert str(drawn).endswith("; unreached: 1073741824; reached by products of dims alone: 300000")
    many = replace(drawn, unreached=tuple(range(10, 20)), products_only=())
    assert str(many).endswith("unreached: 10, 11, 12, 13, 14, 15 and 4 more")


def test_of_very_many_sizes_some_are_aimed_at_and_the_rest_are_told() -> None:
    started = time.process_time()
    drawn = RMS_SIZES.drawn_at(range(2, 100_002), 3)
    assert time.process_time() - started < 5
    assert str(drawn).endswith("99800 more sizes are named than calls are aimed at")
    assert drawn.shapes


def without_beyond() -> Operator:
    return replace(RMS_NORM, beyond=())


def test_where_no_further_range_is_declared_the_hidden_ones_are_drawn_from_at_named_sizes() -> None:
    drawn = Sizes(without_beyond()).drawn_at({33, 100000}, 3)
    assert any(33 in shape.dims.values() for shape in drawn.shapes)
    hidden = [Beyond(each.full, each.decode, each.dims, {}, math.inf) for each in RMS_NORM.hidden]
    assert all(any(lies_in(shape, each) for each in hidden) for shape in drawn.shapes)
    assert 100000 in drawn.unreached


def test_an_operator_that_declares_no_range_gets_no_shape_and_says_so() -> None:
    drawn = Sizes(replace(RMS_NORM, beyond=(), hidden=())).drawn_at({33}, 3)
    assert drawn.shapes == ()
    assert drawn.unreached == (33,)


@pytest.mark.parametrize(("name", "target"), DECLARED)
def test_every_operator_says_how_far_its_sizes_go(name: str, target: str) -> None:
    operator = load_operator(name, target)
    pairs = {(check.full, check.decode) for check in operator.checks}
    assert {(beyond.full, beyond.decode) for beyond in operator.beyond} == pairs
    drawn = Sizes(operator).drawn(operator.best_sources(), 11)
    assert {(shape.full.symbol, shape.decode.symbol) for shape in drawn.shapes} == pairs
    assert all(any(lies_in(shape, beyond) for beyond in operator.beyond) for shape in drawn.shapes)
    assert sum(map(shape_bytes, drawn.shapes)) <= BUDGETS[target == CPU].bytes + (4 << 20)


def test_a_router_is_called_with_more_tokens_than_it_dispatches_on() -> None:
    router = load_operator("topk_softmax", "triton")
    sizes, found = Sizes(router), 0
    for seed in SEEDS:
        many = [shape for shape in sizes.drawn(router.best_sources(), seed).shapes if shape.dims["tokens"] > 8192]
        assert {shape.full.symbol.partition("_full")[0] for shape in many} == {"topk_softmax", "topk_probabilities"}
        found += any(shape.dims["experts"] > 16 and shape.dims["experts"] % 16 for shape in many)
    assert found >= 0.9 * len(SEEDS)
