"""The auditor translates: what the harness says and what the decider demands must mean the same."""

from enum import StrEnum

import pytest

from kernelbraid.events import decider, values
from kernelbraid.kernels.audit import outcome, statistics


@pytest.mark.parametrize("name", ["Correctness", "Infrastructure", "Performance"])
def test_events_and_harness_have_the_same_results(name: str) -> None:
    """Neither room may import the other, so each has the closed set; a result of one alone could not be recorded."""
    recorded: type[StrEnum] = getattr(values, name)
    reported: type[StrEnum] = getattr(outcome, name)
    assert {item.name: item.value for item in recorded} == {item.name: item.value for item in reported}


def test_decider_and_statistics_draw_the_same_lines() -> None:
    assert decider.SMALLEST_DELTA_RATIO == statistics.LEAST_DELTA_RATIO
    assert decider.LARGEST_DELTA_RATIO == statistics.MOST_DELTA_RATIO
