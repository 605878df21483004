"""The rules of a search, seen from whole campaigns: promotion, parenthood, failures of the machine, and every stop."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelbraid.agents import search
from kernelbraid.agents.replay import replay_strict
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import CampaignPaused, CampaignStopped
from kernelbraid.events.errors import RuleBroken
from kernelbraid.events.event import Recorded
from kernelbraid.events.search import ActionProposed, EditFailed, ImplementationSubmitted
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store
from kernelbraid.events.values import Correctness, Infrastructure, Performance, StopReason
from kernelbraid.kernels.audit import outcome
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Verdict
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator, Workload
from tests.campaign.endless import endless
from tests.campaign.toy import (
    events_of,
    failing,
    latency,
    marks,
    memory,
    run_toy,
    simulated,
    told_gain,
)


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store."""
    with memory() as opened:
        yield opened


def state_of(store: Store) -> State:
    """The toy campaign's state."""
    return fold(store.read("toy"))


# --- two winners ---------------------------------------------------------------------------------------------------


PAIR = (frozenset({"lanes", "full_tile"}), frozenset({"lanes", "wide"}))


class Together(SimulatedHarness):
    """Holds two audits back until both have measured against the same incumbent; `wide` gains so much."""

    def __init__(self, operator: Operator, wide_gain: float) -> None:
        super().__init__(operator, 0, latency(self._gain))
        self._wide_gain = wide_gain
        self._met = threading.Barrier(2, timeout=20)

    def _gain(self, applied: frozenset[str], workload: Workload) -> float:
        return told_gain(applied, workload) * (self._wide_gain if "wide" in applied else 1.0)

    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """A simulated audit, after which the chosen two wait for each other."""
        found = super().audit(candidate, root, incumbent)
        if marks(candidate) in PAIR:
            self._met.wait()
        return found


def test_of_two_winners_that_finish_together_one_is_promoted_and_the_other_timed_again(store: Store) -> None:
    # given two offspring of one parent that are both measured against it before either is recorded
    run_toy(store, harness=lambda operator, target: Together(operator, 1.1), parallel=4, audits=5)
    submitted = events_of(store, "toy", ImplementationSubmitted)
    members = {event.implementation for event in submitted if frozenset(event.mechanisms) in PAIR}
    audits = [event for event in events_of(store, "toy", AuditCompleted) if event.implementation in members]
    # then both won against the same incumbent
    assert [event.performance for event in audits] == [Performance.PROMOTABLE] * 2
    assert len({event.measurement.incumbent for event in audits}) == 1
    # and exactly one was promoted on that measurement, the other timed again against the first
    promoted = [event for event in events_of(store, "toy", ImplementationPromoted) if event.implementation in members]
    first = promoted[0].implementation
    timings = events_of(store, "toy", TimingCompleted)
    assert first == audits[0].implementation
    assert [event.measurement.incumbent for event in timings if event.implementation == audits[1].implementation] == [
        first
    ]
    # and the timing is no audit: kappa and the budget did not count it
    assert state_of(store).spent.audits == len(events_of(store, "toy", AuditCompleted)) - 1
    assert replay_strict(store, "toy").divergence is None


def test_a_winner_timed_again_is_promoted_if_it_beats_the_new_best_too(store: Store) -> None:
    # given two winners of which the one that hands in its result last gains more
    class Late(Together):
        def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
            found = super().audit(candidate, root, incumbent)
            if marks(candidate) == {"lanes", "wide"}:
                recorded.wait(20)
            return found

    recorded = threading.Event()

    def watch(item: Recorded, state: State) -> None:
        if isinstance(item.event, ImplementationPromoted) and "full_tile" in mechanisms(state, item.event):
            recorded.set()

    run_toy(store, harness=lambda operator, target: Late(operator, 2.0), watch=watch, parallel=4, audits=5)
    wide = next(
        event.implementation
        for event in events_of(store, "toy", ImplementationSubmitted)
        if event.mechanisms == ("lanes", "wide")
    )
    timed = next(event for event in events_of(store, "toy", TimingCompleted) if event.implementation == wide)
    # then its second timing promotes it, with the ratio against the new best
    assert timed.performance is Performance.PROMOTABLE
    promotions = events_of(store, "toy", ImplementationPromoted)
    promotion = next(event for event in promotions if event.implementation == wide)
    assert promotion.replaces == timed.measurement.incumbent
    assert promotion.gain_ratio == pytest.approx(2.0 / 1.2, rel=0.05)


def mechanisms(state: State, event: ImplementationPromoted) -> tuple[str, ...]:
    """What is in the promoted implementation."""
    return state.implementations[event.implementation].mechanisms


# --- who may be a parent -------------------------------------------------------------------------------------------


def over_limit(applied: frozenset[str], workload: Workload) -> float:
    """`pack` pays, but makes one decode batch slower than the root, until `prefetch` follows it."""
    if "pack" in applied and workload.name == "full":
        return 3.0 * told_gain(applied, workload)
    slowed = "pack" in applied and "prefetch" not in applied and workload.name == "decode_b16"
    return 0.88 if slowed else told_gain(applied, workload)


def test_a_slower_verified_implementation_becomes_a_parent_and_its_offspring_the_best(store: Store) -> None:
    run_toy(store)
    assert_parent_that_never_won(store, Performance.NO_GAIN)


def test_an_implementation_over_a_limit_becomes_a_parent_too(store: Store) -> None:
    run_toy(store, harness=simulated(gain=over_limit))
    assert_parent_that_never_won(store, Performance.OVER_LIMIT)


def assert_parent_that_never_won(store: Store, performance: Performance) -> None:
    """Some promoted implementation has a parent with this result, which was never promoted."""
    state = state_of(store)
    promoted = [
        state.implementations[event.implementation] for event in events_of(store, "toy", ImplementationPromoted)
    ]
    parents = [state.implementations[name] for node in promoted for name in node.parents]
    assert performance in {node.performance for node in parents if not node.promoted}


def test_a_failing_implementation_is_never_a_parent_and_never_in_frontier_or_archive(store: Store) -> None:
    run_toy(store, harness=simulated(failure=failing("stream", "tree", "full_tile")), kappa=40)
    state = state_of(store)
    failed = {name for name, node in state.implementations.items() if node.verdict is Correctness.DISAGREEMENT}
    assert len(failed) >= 3
    assert not failed & {parent for action in state.actions.values() for parent in action.parents}
    assert not failed & (set(state.frontier) | set(state.archive) | set(state.merge_list))
    assert {state.implementations[name].standing for name in failed} == {"failed"}


# --- failures of the machine ---------------------------------------------------------------------------------------


class Failing:
    """Injects an infrastructure verdict into the first `times` audits of one offspring."""

    def __init__(self, times: int, applied: frozenset[str]) -> None:
        self.left = times
        self.applied = applied

    def __call__(self, candidate: Candidate) -> Verdict | None:
        if marks(candidate) != self.applied or self.left == 0:
            return None
        self.left -= 1
        return outcome.Infrastructure.SANDBOX_REFUSED


def verdicts(store: Store, implementation: str) -> list[Correctness | Infrastructure]:
    """All verdicts on one implementation, oldest first."""
    return [
        event.verdict for event in events_of(store, "toy", AuditCompleted) if event.implementation == implementation
    ]


def test_one_failure_of_the_machine_is_tried_again_and_counts_for_nothing(store: Store) -> None:
    run_toy(store, harness=simulated(failure=Failing(1, frozenset({"lanes"}))), audits=3)
    assert verdicts(store, "i0001") == [Infrastructure.SANDBOX_REFUSED, Correctness.VERIFIED]
    state = state_of(store)
    assert (state.spent.audits, state.audited_count) == (3, 4)
    assert replay_strict(store, "toy").divergence is None


def test_a_second_failure_of_the_machine_pauses_and_a_resume_goes_on(store: Store) -> None:
    # given a sandbox that refuses twice
    harness = simulated(failure=Failing(2, frozenset({"lanes"})))
    summary = run_toy(store, harness=harness, audits=3)
    # then the campaign is paused, with the reason, and kappa stands at 0
    assert summary.status == "paused"
    assert "sandbox_refused twice on i0001" in events_of(store, "toy", CampaignPaused)[0].reason
    assert state_of(store).kappa == 0
    # and after a resume the same implementation is audited, and the search ends as it should
    summary = search.resume("toy", store=store, harness=simulated())
    assert verdicts(store, "i0001") == [Infrastructure.SANDBOX_REFUSED] * 2 + [Correctness.VERIFIED]
    assert summary.stop_reason == StopReason.BUDGET
    assert replay_strict(store, "toy").divergence is None


def test_a_root_whose_machine_fails_twice_pauses_and_qualifies_after_a_resume(store: Store) -> None:
    summary = run_toy(store, harness=simulated(failure=Failing(2, frozenset())), audits=2)
    assert (summary.status, summary.counts.audited) == ("paused", 0)
    summary = search.resume("toy", store=store, harness=simulated())
    assert summary.stop_reason == StopReason.BUDGET
    assert replay_strict(store, "toy").divergence is None


# --- stops ---------------------------------------------------------------------------------------------------------


def stopped(store: Store, **options: Any) -> CampaignStopped:
    """How a campaign with these options ends."""
    run_toy(store, **options)
    found: list[CampaignStopped] = events_of(store, "toy", CampaignStopped)
    assert len(found) == 1
    assert replay_strict(store, "toy").divergence is None
    return found[0]


def test_a_root_that_fails_ends_the_campaign(store: Store) -> None:
    wrong = simulated(failure=lambda candidate: outcome.Correctness.INACCURATE)
    assert stopped(store, harness=wrong).reason is StopReason.ROOT_UNQUALIFIED
    assert events_of(store, "toy", ActionProposed) == []


def test_kappa_offspring_in_a_row_without_a_promotion_end_the_campaign(store: Store) -> None:
    nothing = simulated(gain=lambda applied, workload: 1.0)
    assert stopped(store, harness=nothing, kappa=2).reason is StopReason.KAPPA
    assert (state_of(store).kappa, state_of(store).spent.audits) == (2, 2)


@pytest.mark.parametrize("parallel", [1, 3])
def test_the_audit_budget_is_spent_exactly(store: Store, parallel: int) -> None:
    found = stopped(store, audits=7, parallel=parallel)
    assert (found.reason, found.detail) == (StopReason.BUDGET, "audits")
    assert state_of(store).spent.audits == 7


def test_the_wall_clock_counts_driven_time_only(store: Store) -> None:
    # given a campaign with a budget of wall time that was paused early
    slow = simulated(delay_s=lambda candidate: 0.02)
    asked = iter([None, None, "pause", *[None] * 1000])
    options: dict[str, Any] = {"kappa": 1000, "edits_failing": 1000, "strategies": endless()}
    summary = run_toy(store, harness=slow, wall_s=0.7, pause_requested=lambda: next(asked), **options)
    assert summary.status == "paused"
    # when it is resumed after a longer pause
    threading.Event().wait(0.5)
    summary = search.resume("toy", store=store, harness=slow, strategies=endless())
    # then it had the rest of its time, and the pause cost nothing of it
    assert (summary.stop_reason, events_of(store, "toy", CampaignStopped)[0].detail) == (StopReason.BUDGET, "wall")
    recorded = [item.recorded_at for item in store.read("toy")]
    idle_s = (recorded[-1] - recorded[0]).total_seconds() - state_of(store).spent.active_s
    assert state_of(store).spent.active_s >= 0.7
    assert idle_s >= 0.5
    assert replay_strict(store, "toy", strategies=endless()).divergence is None


def test_opportunities_exhausted_ends_the_campaign_when_nothing_has_evidence_any_more(store: Store) -> None:
    assert stopped(store).reason is StopReason.OPPORTUNITIES_EXHAUSTED
    assert not state_of(store).pending


def test_edits_that_keep_failing_end_the_campaign(store: Store) -> None:
    # given a catalogue of which only the careless mechanism is left, and a limit of two failed edits in a row
    nothing = simulated(gain=lambda applied, workload: 1.0)
    found = stopped(store, harness=nothing, edits_failing=2)
    assert found.reason is StopReason.EDITS_FAILING
    assert len(events_of(store, "toy", EditFailed)) == 2
    assert "changes regions of the other path: element" in events_of(store, "toy", EditFailed)[0].reason


def test_a_stop_is_final_and_says_how_to_go_on(store: Store) -> None:
    run_toy(store, audits=1)
    with pytest.raises(RuleBroken, match="final: fork it to go on"):
        search.resume("toy", store=store, harness=simulated())
    with pytest.raises(RuleBroken, match="stopped already"):
        search.stop(store, "toy")
    search.note(store, "toy", "a note still enters")


def test_a_stop_for_kappa_waits_for_running_audits_one_of_which_may_win(store: Store) -> None:
    # given kappa 1 at parallel 2, where the slower audit of the first round is the winner
    harness = simulated(
        gain=lambda applied, workload: told_gain(applied - {"decode_cache"}, workload),  # the last to be tried loses
        delay_s=lambda candidate: 0.3 if marks(candidate) == {"lanes"} else 0.0,
    )
    run_toy(store, harness=harness, parallel=2, kappa=1)
    # then the loser spent kappa first, the winner was promoted all the same, and the search went on
    audits = [event.implementation for event in events_of(store, "toy", AuditCompleted)]
    promoted = events_of(store, "toy", ImplementationPromoted)
    assert promoted[0].implementation == audits[2]
    assert len(events_of(store, "toy", ActionProposed)) > 2
    assert events_of(store, "toy", CampaignStopped)[0].reason is StopReason.KAPPA
    assert replay_strict(store, "toy").divergence is None
