"""The auditor translates: what the harness says and what the decider demands must mean the same."""

from dataclasses import replace
from enum import StrEnum

import numpy as np
import pytest

from kernelbraid.agents.auditor import sessions_of
from kernelbraid.agents.search import declared_contract
from kernelbraid.events import decider, values
from kernelbraid.kernels.audit import outcome, plan, statistics
from kernelbraid.kernels.audit.cuda import clock as device_clock
from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT, ROOT
from kernelbraid.kernels.audit.simulated import SimulatedSession
from kernelbraid.kernels.operators.operator import load_operator
from tests.events.factory import environment


@pytest.mark.parametrize("name", ["Correctness", "Infrastructure", "Performance"])
def test_events_and_harness_have_the_same_results(name: str) -> None:
    """Neither room may import the other, so each has the closed set; a result of one alone could not be recorded."""
    recorded: type[StrEnum] = getattr(values, name)
    reported: type[StrEnum] = getattr(outcome, name)
    assert {item.name: item.value for item in recorded} == {item.name: item.value for item in reported}


def test_decider_and_statistics_draw_the_same_lines() -> None:
    assert decider.SMALLEST_DELTA_RATIO == statistics.LEAST_DELTA_RATIO
    assert decider.LARGEST_DELTA_RATIO == statistics.MOST_DELTA_RATIO


@pytest.mark.parametrize("wanted", [plan.SCREEN, plan.CONFIRMATION, device_clock.SCREEN, device_clock.BESIDE_ROOT])
def test_no_sample_of_a_session_can_be_another_with_all_figures_the_same(wanted: plan.Plan) -> None:
    # given a session by either target's plan
    operator, rng = load_operator("rms_norm"), np.random.default_rng(1)
    latencies_s = {arm: [1e-3] * len(operator.workloads) for arm in (ROOT, INCUMBENT, CANDIDATE)}
    blocks = SimulatedSession(operator, latencies_s, 0.002, rng).run(wanted)
    contract = declared_contract(operator, "cpu", environment())
    before = sessions_of(contract, [blocks.to_bytes()])
    # when any sample of any arm, or any floor, is another
    for _ in range(20):
        arm = str(rng.choice(blocks.arms))
        samples = {name: np.array(found) for name, found in blocks.samples_ns.items()}
        samples[arm].flat[rng.integers(samples[arm].size)] += np.uint32(rng.integers(1, 1000))
        floors = blocks.floor_ns + np.eye(1, blocks.groups, int(rng.integers(blocks.groups)), dtype=np.uint32)[0]
        # then so are the figures
        for edited in (replace(blocks, samples_ns=samples), replace(blocks, floor_ns=floors)):
            assert sessions_of(contract, [edited.to_bytes()]) != before
