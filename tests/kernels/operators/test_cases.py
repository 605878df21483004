"""bfloat16 rounding against a search over all bfloat16 values, and an operator's own Python files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import (
    EPSILON,
    LARGE,
    absorbed,
    from_bfloat16,
    load_reference,
    row_batches,
    row_samples,
    to_bfloat16,
    unit_rows,
)
from kernelbraid.kernels.operators.operator import OperatorError, load_operator

EVERY_FINITE = np.array([bits for bits in range(0x8000) if bits < 0x7F80], np.uint16)
BEYOND_LARGEST = 2.0**128
"""The value that the next bit pattern after the largest finite one would have."""


def nearest_even(value: float) -> int:
    """The bit pattern nearest to a float, by comparing with the two neighbours among all; the even one on a tie."""
    sign, magnitude = (0x8000 if np.signbit(value) else 0), abs(float(value))
    values = np.append(from_bfloat16(EVERY_FINITE).astype(np.float64), BEYOND_LARGEST)
    above = int(np.searchsorted(values, magnitude))
    if above == len(values):
        return sign | 0x7F80
    candidates = [each for each in (above - 1, above) if each >= 0]
    return sign | min(candidates, key=lambda each: (abs(values[each] - magnitude), each % 2))


def halfway_values() -> list[float]:
    """Ties between neighbours, among them subnormals and the last finite value, and the floats next to them."""
    patterns = np.array([0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81, 0x4049, 0x7F7E, 0x7F7F], np.uint32)
    ties = ((patterns << 16) | 0x8000).view(np.float32)
    return [float(np.nextafter(tie, to, dtype=np.float32)) for tie in ties for to in (tie, np.float32(0), tie * 2)]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ties_go_to_the_even_neighbour_and_their_neighbours_to_the_nearer(sign: float) -> None:
    values = [sign * value for value in halfway_values()]
    assert to_bfloat16(np.array(values, np.float32)).tolist() == [nearest_even(value) for value in values]


def test_any_float_rounds_to_the_nearest() -> None:
    # given floats over the whole range of exponents
    bits = np.random.default_rng(3).integers(0, 2**32, 2000, np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]

    # when / then
    assert to_bfloat16(values).tolist() == [nearest_even(value) for value in values]


def test_infinity_stays_what_is_too_large_becomes_it_and_nan_is_kept() -> None:
    # given
    values = np.array([np.inf, -np.inf, 3.4e38, -3.4e38], np.float32)
    nans = np.array([0x7FC00000, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)

    # when / then
    assert to_bfloat16(values).tolist() == [0x7F80, 0xFF80, 0x7F80, 0xFF80]
    assert to_bfloat16(nans).tolist() == [0x7FC0] * 3


def test_every_bfloat16_value_survives_widening_and_rounding() -> None:
    both_signs = np.concatenate([EVERY_FINITE, EVERY_FINITE | 0x8000, np.array([0x7F80, 0xFF80], np.uint16)])
    assert (to_bfloat16(from_bfloat16(both_signs)) == both_signs).all()


def test_rounding_keeps_the_shape_of_any_view() -> None:
    values = np.arange(24, dtype=np.float64).reshape(4, 6)[:, ::2].T
    assert to_bfloat16(values).shape == (3, 4)
    assert from_bfloat16(to_bfloat16(values)).tolist() == values.tolist()
    assert to_bfloat16(np.float32(1.0)).shape == ()


def test_a_missing_reference_is_named(tmp_path: Path) -> None:
    operator = replace(load_operator("linear"), folder=tmp_path)
    with pytest.raises(OperatorError, match=r"reference\.py is missing"):
        load_reference(operator)


@pytest.mark.parametrize("rows", [9, 33, 72, 257])
def test_every_row_is_called_in_a_batch_of_two_to_eight(rows: int) -> None:
    sizes = {batch.stop - batch.start for batch in row_batches(rows)}
    covered = {
        row
        for batch in row_batches(rows)
        if 2 <= batch.stop - batch.start <= 8 or batch == slice(rows - 1, rows)
        for row in range(batch.start, batch.stop)
    }
    assert covered == set(range(rows))
    assert max(batch.stop for batch in row_batches(rows)) == rows
    assert rows < 35 or sizes >= set(range(1, 9))


@pytest.mark.parametrize("rows", [0, 1, 5, 8192])
def test_samples_are_rows_of_the_call(rows: int) -> None:
    drawn = list(row_samples(rows, np.random.default_rng(0)))
    assert len(drawn) == (2 if rows else 0)
    assert all(len(set(each)) == len(each) > 0 and 0 <= min(each) <= max(each) < rows for each in drawn)


@pytest.mark.parametrize("width", [4, 5, 65, 250, 4097])
def test_rows_of_unit_mean_square_are_so_to_the_last_bits_of_float32(width: int) -> None:
    rows = from_bfloat16(unit_rows(np.random.default_rng(3), (60, width))).astype(np.float64)
    off = (rows * rows).mean(axis=1) + EPSILON - 1
    # half of them are one, the others up to four last bits above it
    assert np.all((off > -(2**-24)) & (off < 9 * 2**-24))
    assert 15 < np.count_nonzero(np.abs(off) < 2**-25) < 45
    # and no place of a row is another one's
    assert width < 65 or len(np.unique(np.abs(rows).argmax(axis=1))) > 20


@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_narrowest_rows_come_as_near_as_they_can(width: int) -> None:
    rows = from_bfloat16(unit_rows(np.random.default_rng(3), (5, width))).astype(np.float64)
    assert np.all(np.abs((rows * rows).mean(axis=1) - 1) < 0.01)


def test_large_terms_cancel_in_every_other_result() -> None:
    # given
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((20, 31), np.float32), rng.standard_normal((6, 31), np.float32)
    # when
    absorbed(rng, x, w)
    # then each row has two large terms, results 1, 3 and 5 are small and the others are not
    assert np.all((np.abs(x) == LARGE).sum(axis=1) == 2)
    results = x.astype(np.float64) @ w.T.astype(np.float64)
    assert np.all(np.abs(results[:, 1::2]) < 10)
    assert np.median(np.abs(results[:, ::2])) > 1e4


def test_a_row_of_one_term_has_none_that_cancel() -> None:
    x, w = np.ones((2, 1), np.float32), np.ones((2, 1), np.float32)
    absorbed(np.random.default_rng(0), x, w)
    assert x.max() == 1
