"""A campaign judged again: every due audit and nothing else, and what its claims are worth today."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelbraid.agents import search
from kernelbraid.agents.replay import replay_strict
from kernelbraid.agents.requalify import Claim, Holding, requalify
from kernelbraid.agents.search import HarnessFactory
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted
from kernelbraid.events.campaign import CampaignForked, CampaignPaused
from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.event import Event
from kernelbraid.events.lineage import BranchReactivated
from kernelbraid.events.search import ActionProposed
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT, StopReason
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Infrastructure, Verdict
from kernelbraid.kernels.operators.operator import Workload
from tests.campaign.endless import endless
from tests.campaign.test_fork import OTHER_MACHINE, elsewhere, own_events, state_of
from tests.campaign.toy import marks, memory, run_toy, simulated, told_gain


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with one finished campaign."""
    with memory() as opened:
        run_toy(opened)
        yield opened


def claims(found: Any) -> dict[str, Claim]:
    """By implementation."""
    return {claim.implementation: claim for claim in found.claims}


def audited(events: list[Event]) -> list[str]:
    """What was audited, in that order."""
    return [event.implementation for event in events if isinstance(event, AuditCompleted)]


def without(*names: str) -> Callable[[frozenset[str], Workload], float]:
    """The toy's gains where these mechanisms gain nothing."""
    return lambda applied, workload: told_gain(applied - set(names), workload)


# --- what is done --------------------------------------------------------------------------------------------------


def test_in_the_same_environment_all_that_was_claimed_is_audited_again_and_holds(store: Store) -> None:
    # given a campaign that ended with a best
    before = state_of(store, "toy")
    due = list(dict.fromkeys([ROOT, str(before.best), *before.frontier]))
    # when it is requalified where it was measured
    found = requalify("toy", store=store, harness=simulated(seed=1))
    # then exactly those are audited once more, nothing is tried, and the child waits
    events = own_events(store, found.campaign)
    assert audited(events) == due
    assert not [event for event in events if isinstance(event, ActionProposed)]
    assert isinstance(events[-1], CampaignPaused)
    assert found.complete
    # and every claim holds, with nothing to blame otherwise
    assert found.differences == ()
    assert {claim.holding for claim in found.claims} == {Holding.HOLDS}
    assert (found.holds, found.best_now) == (True, before.best)
    assert found.best.then.speedup is not None
    assert found.best.now.speedup is not None
    assert found.best.now.speedup.low <= found.best.then.speedup.ratio * 1.03
    # and the parent is as it was
    assert state_of(store, "toy").position == before.position


def test_with_the_archive_everything_verified_is_audited_again(store: Store) -> None:
    before = state_of(store, "toy")
    found = requalify("toy", store=store, archive=True, harness=simulated(seed=1))
    verified = [node.id for node in before.implementations.values() if node.verified]
    assert before.archive
    assert sorted(claims(found)) == sorted(verified)
    assert all(claims(found)[name].role == "archive" for name in before.archive if name != ROOT)
    assert sorted(audited(own_events(store, found.campaign))) == sorted(verified)


def test_the_child_replays_and_searches_on_where_it_is(store: Store) -> None:
    factory = elsewhere(OTHER_MACHINE)
    found = requalify("toy", store=store, archive=True, harness=factory)
    assert replay_strict(store, found.campaign).divergence is None
    summary = search.resume(found.campaign, store=store, harness=factory)
    assert summary.status == "stopped"
    assert replay_strict(store, found.campaign).divergence is None
    assert store.verify(found.campaign).problems == ()


def test_a_spent_kappa_is_no_obstacle(store: Store) -> None:
    flat = simulated(gain=lambda applied, workload: 1.0)
    run_toy(store, "flat", harness=flat, strategies=endless(), kappa=2)
    assert state_of(store, "flat").stop_reason is StopReason.KAPPA
    found = requalify("flat", store=store, harness=flat, strategies=endless())
    assert found.complete
    assert found.best_then == found.best_now == ROOT
    assert found.holds


def test_a_pause_is_heard_between_two_audits_and_the_rest_is_not_judged(store: Store) -> None:
    asked = iter([None, *["interrupted"] * 9])
    found = requalify("toy", store=store, harness=simulated(), pause_requested=lambda: next(asked))
    assert not found.complete
    assert found.pause_reason == "interrupted"
    assert [claim.holding for claim in found.claims] == [Holding.HOLDS, Holding.NOT_JUDGED]
    # and a resume judges the rest before it tries anything
    search.resume(found.campaign, store=store, harness=simulated())
    own = [event for event in own_events(store, found.campaign) if isinstance(event, AuditCompleted | ActionProposed)]
    assert audited(list(own))[: len(found.claims)] == [claim.implementation for claim in found.claims]


def test_a_campaign_that_never_qualified_claims_nothing(store: Store) -> None:
    run_toy(store, "paused", pause_requested=lambda: "at once")
    with pytest.raises(KernelbraidError, match="until its root qualified"):
        requalify("paused", store=store, harness=simulated())


# --- what still holds ----------------------------------------------------------------------------------------------


def best_marks(state: State, store: Store) -> frozenset[str]:
    """The mechanisms of the best."""
    return frozenset(state.implementations[str(state.best)].mechanisms)


def test_a_best_that_is_wrong_elsewhere_fails_and_another_takes_its_place(store: Store) -> None:
    # given an environment in which the best alone gives wrong results
    before = state_of(store, "toy")
    whole = best_marks(before, store)

    def failure(candidate: Candidate) -> Verdict | None:
        return Correctness.DISAGREEMENT if marks(candidate) == whole else None

    found = requalify("toy", store=store, archive=True, harness=simulated(failure=failure))
    assert (found.best.holding, found.best.why) == (Holding.FAILS, "disagreement here")
    assert not found.holds
    # then the best of what is left is promoted, and an archived one comes back to the frontier for it
    assert found.best_now not in (None, before.best)
    events = own_events(store, found.campaign)
    won = [event.implementation for event in events if isinstance(event, ImplementationPromoted)]
    back = [event.implementation for event in events if isinstance(event, BranchReactivated)]
    assert back == [name for name in won if name in before.archive]
    after = state_of(store, found.campaign)
    assert after.best in after.frontier
    assert replay_strict(store, found.campaign).divergence is None


def test_a_gain_that_shrank_is_weaker(store: Store) -> None:
    found = requalify("toy", store=store, harness=elsewhere(OTHER_MACHINE, without("tree", "full_tile")))
    assert found.best.holding is Holding.WEAKER
    assert "less against the root" in found.best.why
    assert not found.holds
    assert found.differences == ("cpu_model simulated -> another",)


def test_a_gain_that_vanished_fails(store: Store) -> None:
    found = requalify("toy", store=store, harness=simulated(seed=2, gain=lambda applied, workload: 1.0))
    assert found.best.holding is Holding.FAILS
    assert found.best.why == "it is not shown to be faster than the root here"
    assert found.best_now == ROOT


def test_a_root_that_is_wrong_here_ends_it(store: Store) -> None:
    found = requalify("toy", store=store, harness=simulated(failure=lambda _: Correctness.INACCURATE))
    assert found.stop_reason == StopReason.ROOT_UNQUALIFIED
    assert claims(found)[ROOT].holding is Holding.FAILS
    assert found.best.holding is Holding.NOT_JUDGED
    assert not found.holds


def test_a_machine_that_fails_pauses_and_nothing_is_said_of_the_rest(store: Store) -> None:
    sick = simulated(failure=lambda candidate: Infrastructure.DEVICE_FAULT if marks(candidate) else None)
    found = requalify("toy", store=store, harness=sick)
    assert found.pause_reason is not None
    assert "device_fault twice" in found.pause_reason
    assert not found.complete
    assert found.best.holding is Holding.NOT_JUDGED


def test_the_fork_says_whether_the_archive_was_due(store: Store) -> None:
    harness: HarnessFactory = simulated()
    for archive in (False, True):
        child = requalify("toy", store=store, archive=archive, harness=harness).campaign
        (forked,) = [event for event in own_events(store, child) if isinstance(event, CampaignForked)]
        assert (forked.stale, forked.stale_archive) == (True, archive)
        assert fold(store.read(child)).status == "paused"
