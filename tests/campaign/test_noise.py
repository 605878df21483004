"""Noise promotes nothing: identical candidates never win, and a gain of three percent does."""

import pytest

from kernelbraid.agents.search import HarnessFactory, native_harness, run
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted
from kernelbraid.events.search import ImplementationSubmitted
from kernelbraid.events.state import fold
from kernelbraid.events.store import Store
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Workload
from tests.campaign.endless import endless, number
from tests.campaign.toy import BASE_S, events_of, memory, run_toy

FASTER = 23
NOISES = (0.001, 0.003)
"""Standard deviation of a restart's effect on a latency; a single sample's is twice that."""


def noisy(seed: int, noise_ratio: float, gain: float = 1.0) -> HarnessFactory:
    """Every candidate as fast as the root, but for one try that is `gain` times faster."""

    def latency(candidate: Candidate, workload: Workload) -> float:
        return BASE_S[workload.name] / (gain if number(candidate) == FASTER else 1.0)

    return lambda operator, target: SimulatedHarness(operator, seed, latency, noise_ratio=noise_ratio)


def tried(store: Store, offspring: int, harness: HarnessFactory) -> list[str]:
    """The promoted implementations of a campaign of so many offspring."""
    run_toy(store, harness=harness, strategies=endless(), audits=offspring, kappa=offspring + 1)
    assert fold(store.read("toy")).spent.audits == offspring
    return [event.implementation for event in events_of(store, "toy", ImplementationPromoted)]


@pytest.mark.parametrize("noise_ratio", NOISES)
def test_forty_identical_candidates_promote_none(noise_ratio: float) -> None:
    with memory() as store:
        assert tried(store, 40, noisy(1, noise_ratio)) == []


@pytest.mark.parametrize("noise_ratio", NOISES)
def test_the_same_set_up_promotes_a_gain_of_three_percent_and_nothing_else(noise_ratio: float) -> None:
    with memory() as store:
        assert tried(store, 40, noisy(1, noise_ratio, gain=1.03)) == [f"i{FASTER:04d}"]


@pytest.mark.soak
@pytest.mark.parametrize("noise_ratio", NOISES)
@pytest.mark.parametrize("seed", range(5))
def test_three_hundred_identical_candidates_promote_none(seed: int, noise_ratio: float) -> None:
    with memory() as store:
        assert tried(store, 300, noisy(seed, noise_ratio)) == []


def test_a_screen_sends_some_identical_candidates_on_so_the_confirmation_is_what_refuses_them() -> None:
    with memory() as store:
        tried(store, 40, noisy(1, 0.008))
        measured = [event.measurement for event in events_of(store, "toy", AuditCompleted) if event.measurement]
        assert sum(measurement.confirmation is not None for measurement in measured) > 0


# --- on this machine, by the real clock ----------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timing
def test_identical_candidates_on_this_machine_promote_none() -> None:
    with memory() as store:
        # given the packaged rms_norm whose every offspring is the root with a remark
        run("rms_norm", store=store, name="noise", strategies=endless(), harness=native_harness, audits=40, kappa=50)
        assert len(events_of(store, "noise", ImplementationSubmitted)) == 40
        assert events_of(store, "noise", ImplementationPromoted) == []
