"""When a figure that is worked out again is the same figure.

Python's versions sum, and numpy's builds take logarithms, differently in the last bits: a log recorded elsewhere gives
figures here that differ in the sixteenth digit. Everything else must be equal.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

RELATIVE = 1e-9
ABSOLUTE = 1e-12
"""For figures that are differences, and may be zero."""


def alike(one: Any, other: Any) -> bool:
    """Whether two events, records or collections are equal but for the last digits of their floats."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    if isinstance(one, BaseModel):
        return type(one) is type(other) and all(
            alike(getattr(one, name), getattr(other, name)) for name in type(one).model_fields
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)
