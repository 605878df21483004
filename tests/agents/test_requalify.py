"""What holds and what differs, as plain functions: figures then and now, environments then and now."""

import pytest

from kernelbraid.agents.requalify import Holding, Interval, Standing, environment_changes, held
from kernelbraid.events.values import Correctness, Environment, Performance
from tests.events.given import ENVIRONMENT


def measured(ratio: float, low: float | None = None, high: float | None = None) -> Standing:
    """A verified implementation with this speedup."""
    interval = Interval(ratio, ratio - 0.05 if low is None else low, ratio + 0.05 if high is None else high)
    return Standing(Correctness.VERIFIED, Performance.PROMOTABLE, interval)


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (measured(2.0), measured(2.0), Holding.HOLDS),
        (measured(2.0), measured(3.0), Holding.HOLDS),
        (measured(2.0), measured(1.92), Holding.HOLDS),  # the intervals meet
        (measured(2.0, 1.99, 2.01), measured(1.97, 1.96, 1.98), Holding.HOLDS),  # apart, but by less than 3 %
        (measured(2.0), measured(1.8), Holding.WEAKER),
        (measured(2.0), measured(1.0), Holding.FAILS),
        (measured(2.0), measured(1.04, 0.99, 1.09), Holding.FAILS),
        (measured(1.06, 1.02, 1.1), measured(1.05, 0.99, 1.11), Holding.HOLDS),  # less sure, and not less
        (measured(0.9), measured(0.9), Holding.HOLDS),  # it never claimed to be faster
        (measured(0.9), measured(0.5), Holding.WEAKER),
        (measured(2.0), Standing(Correctness.INACCURATE, None, None), Holding.FAILS),
        (measured(2.0), Standing(None, None, None), Holding.NOT_JUDGED),
    ],
)
def test_a_claim_holds_as_far_as_both_intervals_tell(then: Standing, now: Standing, expected: Holding) -> None:
    holding, why = held(then, now)
    assert holding is expected
    assert bool(why) is (expected is not Holding.HOLDS)


def changed(**fields: object) -> Environment:
    """The environment with other fields."""
    return Environment.model_validate(ENVIRONMENT.model_dump() | fields)


def test_the_same_environment_has_no_changes_whatever_its_ceilings_measured() -> None:
    assert environment_changes(ENVIRONMENT, ENVIRONMENT) == ()
    assert environment_changes(ENVIRONMENT, changed(physics={"flop_per_s": 1e12})) == ()


def test_every_other_field_is_named_and_only_what_differs_in_it() -> None:
    before = changed(flags=("-O3", "-g"), packages={"driver": "580", "torch": "2.11"}, device="")
    after = changed(
        compiler_version="13.1.0",
        flags=("-O3", "-mno-avx512f"),
        packages={"driver": "590", "torch": "2.11", "triton": "3.5"},
        device="an accelerator",
        harness_digest="f" * 64,
    )
    assert environment_changes(before, after) == (
        f"compiler_version {ENVIRONMENT.compiler_version} -> 13.1.0",
        "flags without -g and with -mno-avx512f",
        "another audit harness",
        "device none -> an accelerator",
        "packages driver 580 -> 590, triton none -> 3.5",
    )
