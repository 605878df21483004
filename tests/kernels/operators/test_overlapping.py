"""The rewrite that lets kernels be launched early: every kernel waits before all else, and every launch says so."""

import pytest

from kernelbraid.kernels.operators.operator import load_operator
from kernelbraid.kernels.operators.overlapping import WAIT, overlapped
from kernelbraid.kernels.operators.regions import Refused, region

SOURCES = {
    "kernel.py": '''\
# region row
@triton.jit
def helper(x):
    """No kernel of its own."""
    return x


@triton.jit(do_not_specialize=["n"])
def shared(
    x,
    n,
):
    """Two
    lines."""
    helper(x)


# endregion row


# region full
@triton.jit
def first(x):
    """One line."""
    helper(x)


def entry(x):
    """Two launches."""
    first[(len(x),)](x, num_warps=4)
    first[(1,)](
        x,
        num_warps=2,
    )


# endregion full


# region decode
def other(x):
    """Of what both share."""
    shared[(1,)](x, len(x), num_warps=4)


# endregion decode
'''
}


def test_each_kernel_of_a_path_waits_first_and_each_launch_of_it_does_not() -> None:
    # when
    after = overlapped(("full",), SOURCES)

    # then
    text = region(after, "full")
    assert f'    """One line."""\n{WAIT}    helper(x)\n' in text
    assert "first[(len(x),)](x, launch_pdl=True, num_warps=4)" in text
    assert "        launch_pdl=True, num_warps=2,\n" in text
    assert region(after, "decode") == region(SOURCES, "decode")
    assert region(after, "row") == region(SOURCES, "row")


def test_a_kernel_of_a_shared_region_waits_where_that_region_is_among_the_rewritten() -> None:
    text = overlapped(("row", "full", "decode"), SOURCES)["kernel.py"]
    assert f'    lines."""\n{WAIT}    helper(x)\n' in text
    assert "shared[(1,)](x, len(x), launch_pdl=True, num_warps=4)" in text
    assert text.count(WAIT) == 2


def test_a_kernel_that_stands_elsewhere_or_waits_already_is_refused() -> None:
    with pytest.raises(Refused, match="decode"):
        overlapped(("decode",), SOURCES)
    with pytest.raises(Refused, match="row"):
        overlapped(("row",), SOURCES)
    with pytest.raises(Refused, match="full"):
        overlapped(("full",), overlapped(("full",), SOURCES))


@pytest.mark.parametrize("name", ["rms_norm", "rope", "silu_and_mul", "log_softmax_gather"])
def test_every_launch_of_a_packaged_path_is_rewritten(name: str) -> None:
    for path in ("full", "decode"):
        text = region(overlapped((path,), load_operator(name, "triton").root_sources()), path)
        assert text.count("launch_pdl=True") == text.count("num_warps=")
