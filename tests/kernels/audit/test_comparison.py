"""Bits and accuracy: nothing that is wrong passes as close."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbraid.kernels.audit.comparison import first_difference, inaccuracy
from kernelbraid.kernels.operators.cases import to_bfloat16
from kernelbraid.kernels.operators.operator import Tolerance

TOLERANCE = Tolerance(max_ratio=1e-5, rms_ratio=1e-6)
RNG = np.random.default_rng(0)
EXACT = RNG.standard_normal((9, 33))
GOOD = EXACT.astype(np.float32)


def test_equal_bits_have_no_difference() -> None:
    assert first_difference(GOOD.copy(), GOOD) is None


def test_the_first_difference_names_both_patterns() -> None:
    found = GOOD.copy()
    found[2, 5] = 1.0
    found[3, 0] = 2.0
    expected = GOOD.copy()
    expected[2, 5] = np.nextafter(np.float32(1.0), np.float32(2.0))
    difference = first_difference(found, expected)
    assert str(difference) == "element [2, 5] is 0x3f800000 instead of 0x3f800001; 2 of 297 differ"


def test_nan_is_no_wildcard_and_zeros_have_signs() -> None:
    nan, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32).reshape(2, 1)
    assert first_difference(nan, nan) is None
    assert first_difference(nan, other) is not None
    assert first_difference(np.array([0.0], np.float32), np.array([-0.0], np.float32)) is not None


def test_shapes_must_be_the_same() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        first_difference(GOOD[:1], GOOD)


def test_a_rounded_result_is_accurate_and_so_is_a_bfloat16_one() -> None:
    assert inaccuracy(GOOD, EXACT, TOLERANCE) is None
    assert inaccuracy(to_bfloat16(GOOD), EXACT, Tolerance(5e-3, 5e-3)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros_like(GOOD),
        np.full_like(GOOD, GOOD.mean()),
        np.broadcast_to(GOOD.mean(axis=1, keepdims=True), GOOD.shape),
        RNG.standard_normal(GOOD.shape).astype(np.float32),
        GOOD * np.float32(1.001),
        GOOD[::-1],
    ],
    ids=["zeros", "mean", "row means", "an input", "scaled", "rows swapped"],
)
def test_garbage_is_inaccurate(wrong: np.ndarray) -> None:
    assert inaccuracy(np.ascontiguousarray(wrong), EXACT, TOLERANCE) is not None


@given(st.integers(0, 296), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_value_that_is_not_finite_is_inaccurate(place: int, value: float) -> None:
    found = GOOD.copy()
    found.flat[place] = value
    evidence = inaccuracy(found, EXACT, TOLERANCE)
    assert evidence is not None
    assert str(value) in evidence


def test_where_the_reference_is_zero_only_zero_is_accurate() -> None:
    zeros = np.zeros((2, 3))
    assert inaccuracy(zeros.astype(np.float32), zeros, TOLERANCE) is None
    assert inaccuracy(np.full((2, 3), 1e-30, np.float32), zeros, TOLERANCE) is not None


def test_nothing_is_accurate_when_there_is_nothing_to_compare() -> None:
    assert inaccuracy(np.zeros((0, 4), np.float32), np.zeros((0, 4)), Tolerance(1e-6, 1e-6)) is None
