"""Figures worked out on another machine are the same figures; nothing else may differ."""

import math
from types import MappingProxyType

import pytest

from kernelbraid.agents.alike import alike
from kernelbraid.events.campaign import NoteAdded, RootQualified


def qualified(objective_s: float, name: str = "full") -> RootQualified:
    return RootQualified(latencies_s={name: 0.25}, objective_s=objective_s, baselines=(), blocks=())


def test_the_last_digits_of_a_figure_may_differ() -> None:
    assert alike(qualified(0.3), qualified(math.nextafter(0.3, 1)))
    assert alike({"ratio": 0.1 + 0.2}, MappingProxyType({"ratio": 0.3}))
    assert alike((0.0, 1), (1e-17, 1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (qualified(0.3), qualified(0.3000001)),
        (qualified(0.3), qualified(0.3, "decode")),
        (qualified(0.3), NoteAdded(text="0.3")),
        ((0.3,), (0.3, 0.3)),
        ("0.30", "0.3"),
        (math.inf, 1e300),
        (math.nan, math.nan),
        (1, 2),
    ],
)
def test_anything_else_may_not(one: object, other: object) -> None:
    assert not alike(one, other)
