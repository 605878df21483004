"""Comparing outputs: bit for bit, and against float64. Pure; every answer is None or evidence a person can follow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import from_bfloat16
from kernelbraid.kernels.operators.operator import Tolerance

Bits = NDArray[Any]
_UNSIGNED: Mapping[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first differing element and how many there are."""

    index: tuple[int, ...]
    found: int
    expected: int
    count: int
    size: int
    digits: int

    def __str__(self) -> str:
        """Index and both bit patterns."""
        at = ", ".join(map(str, self.index))
        bits = f"{self.found:#0{self.digits}x} instead of {self.expected:#0{self.digits}x}"
        return f"element [{at}] is {bits}; {self.count} of {self.size} differ"


def bits(values: Bits) -> Bits:
    """The unsigned integers that hold the values' bits."""
    return np.asarray(np.ascontiguousarray(values).view(_UNSIGNED[values.dtype.itemsize]))


def first_difference(found: Bits, expected: Bits) -> Difference | None:
    """The first element whose bits differ; None when all are equal. No NaN is a wildcard.

    Raises ValueError when the shapes differ.
    """
    if found.shape != expected.shape:
        raise ValueError(f"shapes {list(found.shape)} and {list(expected.shape)} cannot be compared")
    differing = bits(found) != bits(expected)
    count = int(np.count_nonzero(differing))
    if not count:
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differing)), found.shape))
    digits = 2 + 2 * found.dtype.itemsize
    return Difference(index, int(bits(found)[index]), int(bits(expected)[index]), count, found.size, digits)


def widened(values: Bits) -> NDArray[np.float64]:
    """float64 of float32 values, of bfloat16 ones held as uint16, or of integers."""
    exact = from_bfloat16(np.asarray(values, np.uint16)) if values.dtype == np.uint16 else values
    return exact.astype(np.float64)


def inaccuracy(found: Bits, reference: NDArray[np.float64], tolerance: Tolerance) -> str | None:
    """Evidence when an error passes the tolerance, or any value is not finite where the reference is.

    An element's error counts relative to the largest magnitude in its row (last axis) of the reference; the root
    mean square relative to the reference's own. Where the reference is zero throughout, only zero is accurate.
    """
    values, rows = widened(found), np.atleast_1d(reference)
    values = values.reshape(rows.shape)
    if not rows.size:
        return None
    error = np.abs(np.subtract(values, rows))
    squares = float(np.vdot(error, error))
    if not math.isfinite(squares):
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        return f"element {list(index)} is {values[index]}, the float64 reference {rows[index]:.9g}"
    ratios = _ratio(error.max(axis=-1), np.maximum(rows.max(axis=-1), -rows.min(axis=-1)))
    rms = float(_ratio(np.sqrt(squares / rows.size), np.sqrt(np.vdot(rows, rows) / rows.size)))
    row = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    if ratios[row] <= tolerance.max_ratio and rms <= tolerance.rms_ratio:
        return None
    worst = (*row, int(np.argmax(error[row])))
    worst_text = f"element {list(worst)} is {values[worst]:.9g}, the float64 reference {rows[worst]:.9g}"
    allowed = f"allowed {tolerance.max_ratio:.3g} and {tolerance.rms_ratio:.3g}"
    return f"{worst_text}: error {ratios[row]:.3g} of its row's largest, root mean square {rms:.3g} ({allowed})"


def _ratio(error: NDArray[np.float64] | float, scale: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """error / scale; zero over zero is 0, anything else over zero infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(error == 0, 0.0, error / scale))
