"""Where tensors lie: apart, aligned, inside their windows, with canaries everywhere else."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kernelbraid.kernels.audit.layout import ALIGN_BYTES, FEW_CALLS, PAGE_BYTES, plan_layout
from kernelbraid.kernels.audit.memory import Outputs
from kernelbraid.kernels.operators.operator import Entry, Tensor

ENTRY = Entry(
    symbol="f",
    path="full",
    dtype="float32",
    dims=("n", "m"),
    inputs=(Tensor("a", "float32", ("n", "m")), Tensor("b", "bfloat16", ("m",)), Tensor("c", "int32", ("n",))),
    outputs=(Tensor("y", "float32", ("n", "m")), Tensor("z", "bfloat16", ("n",))),
)
SIZES = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=3 * FEW_CALLS)


@given(SIZES)
def test_tensors_are_aligned_and_never_overlap(sizes: Sequence[tuple[int, int]]) -> None:
    layout = plan_layout(0, [(ENTRY, {"n": n, "m": m}) for n, m in sizes], 2 * PAGE_BYTES, 4 * PAGE_BYTES)
    for kind, start, end in (
        ("inputs", layout.input_offset, layout.input_end),
        ("outputs", layout.windows[0][0], layout.output_end),
    ):
        places = sorted((place.offset, place.bytes) for call in layout.calls for place in getattr(call, kind))
        assert all(offset % ALIGN_BYTES == 0 for offset, _ in places)
        assert places[0][0] >= start
        assert sum(places[-1]) <= end
        assert all(sum(one) <= other[0] for one, other in pairwise(places))


@given(SIZES)
def test_every_byte_of_a_window_is_a_tensors_or_a_canary(sizes: Sequence[tuple[int, int]]) -> None:
    layout = plan_layout(0, [(ENTRY, {"n": n, "m": m}) for n, m in sizes])
    tensors = sum(place.bytes for call in layout.calls for place in call.outputs)
    canaries = sum(end - start for start, end in layout.gaps())
    assert tensors + canaries == sum(size for _, size in layout.windows)


@given(st.integers(1, 90), st.integers(1, 90))
def test_a_lone_outputs_end_is_close_to_the_guard(n: int, m: int) -> None:
    layout = plan_layout(0, [(ENTRY, {"n": n, "m": m})])
    for place in layout.calls[0].outputs:
        assert place.window is not None
        assert sum(layout.windows[place.window]) - (place.offset + place.bytes) < ALIGN_BYTES


def test_any_overwritten_canary_is_found_and_tensors_are_not_canaries() -> None:
    layout = plan_layout(0, [(ENTRY, {"n": 5, "m": 3})] * 2)
    outputs = Outputs(layout.output_end)
    for start, end in layout.gaps():
        for at in (start, end - 1):
            outputs.poison(layout)
            outputs.bytes[at] ^= 1
            assert outputs.first_broken_canary(layout) is not None
    outputs.poison(layout)
    for call in layout.calls:
        for place in call.outputs:
            assert outputs.read(place).tobytes() == outputs.poison_of(place).tobytes()
            outputs.view(place)[...] = 0
    assert outputs.first_broken_canary(layout) is None
    outputs.close()
