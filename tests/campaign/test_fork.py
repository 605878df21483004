"""Forks by reference: cheap, nested, independent of their origin, and audited again where its verdicts do not hold."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from kernelbraid.agents import search
from kernelbraid.agents.forking import fork
from kernelbraid.agents.replay import replay_strict
from kernelbraid.agents.search import HarnessFactory
from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.campaign import CampaignForked, CampaignOpened, CampaignResumed, CampaignStopped
from kernelbraid.events.errors import KernelbraidError, NotDrivable, PositionMissing, RuleBroken
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.search import ActionDropped, ActionProposed, ImplementationSubmitted, OpportunityRaised
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store, open_store
from kernelbraid.events.values import ROOT, DropReason, StopReason
from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.outcome import Candidate, Correctness
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator, Workload, load_operator
from kernelbraid.projections.digest import state_digest
from kernelbraid.projections.summary import CampaignSummary
from tests.campaign.endless import endless
from tests.campaign.toy import TOY, events_of, failing, latency, marks, memory, run_toy, simulated, story, told_gain


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store."""
    with memory() as opened:
        yield opened


def state_of(store: Store, campaign: str, upto: int | None = None) -> State:
    """A campaign's state."""
    return fold(store.read(campaign, upto=upto))


def digest(store: Store, campaign: str, upto: int | None = None) -> str:
    """The digest of a campaign's state."""
    return state_digest(state_of(store, campaign, upto))


def own_events(store: Store, campaign: str) -> list[Event]:
    """The payloads that a campaign stored itself, not those of its origin."""
    return [item.event for item in store.read(campaign) if item.campaign == campaign]


def goes_on(store: Store, campaign: str, harness: HarnessFactory | None = None) -> CampaignSummary:
    """Drive a campaign to its end."""
    return search.resume(campaign, store=store, harness=harness or simulated())


def replays(store: Store, campaign: str) -> None:
    """Today's agents decide the campaign again."""
    report = replay_strict(store, campaign)
    assert report.divergence is None, report.divergence


def paused_after(rounds: int) -> Callable[[], str | None]:
    """Asks for a pause once, after so many rounds."""
    asked = iter([*[None] * rounds, "to fork", *[None] * 1000])
    return lambda: next(asked)


def dying_after(count: int, kind: type[Event]) -> Callable[[Recorded, State], None]:
    """A watch that fails at the so-manieth event of a kind."""
    seen: list[int] = []

    def watch(recorded: Recorded, state: State) -> None:
        if isinstance(recorded.event, kind):
            seen.append(recorded.position)
        if len(seen) == count:
            raise ConnectionAbortedError

    return watch


# --- by reference --------------------------------------------------------------------------------------------------


def test_twenty_nested_forks_each_add_their_own_events_only(store: Store) -> None:
    # given a campaign and twenty generations, each of which searches a little further
    run_toy(store, "g0", strategies=endless(), audits=1)
    names, digests = ["g0"], [digest(store, "g0")]
    for generation in range(1, 21):
        name = f"g{generation}"
        fork(names[-1], store=store, name=name, strategies=endless(), changes={"audits": 1})
        search.resume(name, store=store, strategies=endless(), harness=simulated())
        names.append(name)
        digests.append(digest(store, name))
    # then the last one holds all of them, and none was touched by its children
    assert state_of(store, "g20").audited_count == 1 + 21
    assert [digest(store, name) for name in names] == digests
    assert all(len(own_events(store, name)) < 12 for name in names[1:])
    assert store.verify("g20").problems == ()
    report = replay_strict(store, "g20", strategies=endless())
    assert report.divergence is None
    # and ids go on through the generations
    submitted = events_of(store, "g20", ImplementationSubmitted)
    assert [event.implementation for event in submitted] == [f"i{n:04d}" for n in range(1, 22)]


def test_origin_and_child_go_on_independently_and_to_the_same_end(store: Store) -> None:
    # given a campaign that was paused and forked there
    run_toy(store, pause_requested=paused_after(5))
    at = store.position("toy")
    fork("toy", store=store, name="child")
    assert [type(event) for event in own_events(store, "child")] == [CampaignForked]
    # when both go on, the child first
    goes_on(store, "child")
    before = digest(store, "child")
    goes_on(store, "toy")
    # then neither notices the other, both chains hold, and both can be decided again
    assert digest(store, "child") == before
    assert digest(store, "child", at) == digest(store, "toy", at)
    for name in ("toy", "child"):
        assert store.verify(name).problems == ()
        replays(store, name)
    # and with nothing changed they tell the same story, which is the uninterrupted one
    told = [item[-1] for item in story(store.read("child")) if not isinstance(item[-1], CampaignForked)]
    assert told == [item[-1] for item in story(store.read("toy"))]


def test_a_fork_in_the_past_leaves_the_finished_origin_alone(store: Store) -> None:
    run_toy(store)
    finished = digest(store, "toy")
    at = next(item.position for item in store.read("toy") if isinstance(item.event, ImplementationSubmitted)) + 2
    child = fork("toy", store=store, at=at)
    summary = goes_on(store, child)
    assert child == "toy.1"
    assert summary.stop_reason == StopReason.OPPORTUNITIES_EXHAUSTED
    assert digest(store, "toy") == finished
    replays(store, child)


def test_a_position_inside_an_append_is_refused(store: Store) -> None:
    run_toy(store, audits=1)
    inside = next(item.position for item in store.read("toy") if item.batch[0] < item.batch[1])
    with pytest.raises(PositionMissing):
        fork("toy", store=store, at=inside)


# --- what is open, inherited and begun anew ------------------------------------------------------------------------


def test_actions_in_flight_are_dropped_in_the_child_and_their_opportunities_pending(store: Store) -> None:
    # given a driver that dies with three offspring under audit
    under_audit = threading.Barrier(3, timeout=20)

    def die_together(candidate: Candidate) -> float:
        if len(marks(candidate)) > 1:
            under_audit.wait()
            raise ConnectionAbortedError
        return 0.0

    with pytest.raises(ConnectionAbortedError):
        run_toy(store, harness=simulated(delay_s=die_together), parallel=3)
    state = state_of(store, "toy")
    open_actions = list(state.open_actions)
    assert [state.actions[action].implementation is None for action in open_actions] == [False] * 3
    opportunities = [state.actions[action].opportunity for action in open_actions]
    # when it is forked there
    fork("toy", store=store, name="child")
    # then one row is the fork and one more drops each action
    assert [type(event) for event in own_events(store, "child")] == [CampaignForked, *[ActionDropped] * 3]
    dropped = events_of(store, "child", ActionDropped)
    assert [(event.action, event.reason) for event in dropped] == [(name, DropReason.FORKED) for name in open_actions]
    child = state_of(store, "child")
    assert set(opportunities) <= set(child.pending)
    assert not child.open_actions
    # and the origin, taken up again, audits its own three, while the child tries them under new ids
    goes_on(store, "toy")
    goes_on(store, "child")
    audited = [event.action for event in events_of(store, "toy", AuditCompleted)]
    assert set(open_actions) <= set(audited)
    again = [event.action for event in own_events(store, "child") if isinstance(event, ActionProposed)]
    assert not set(open_actions) & set(again)
    assert not set(opportunities) & set(state_of(store, "child").pending)
    for name in ("toy", "child"):
        replays(store, name)


def test_budgets_begin_anew_and_what_was_inherited_is_kept_apart(store: Store) -> None:
    run_toy(store, audits=4)
    fork("toy", store=store, name="child", changes={"audits": 3})
    state = state_of(store, "child")
    assert state.spent.audits == 0
    assert state.inherited is not None
    assert state.inherited.audits == 4
    assert goes_on(store, "child").stop_reason == StopReason.BUDGET
    assert state_of(store, "child").spent.audits == 3
    assert len(events_of(store, "child", AuditCompleted)) == 1 + 4 + 3
    replays(store, "child")


def test_a_spent_kappa_must_be_raised(store: Store) -> None:
    # given a campaign that ended because nothing won any more
    run_toy(store, harness=simulated(gain=lambda applied, workload: 1.0), strategies=endless(), kappa=3)
    assert events_of(store, "toy", CampaignStopped)[0].reason is StopReason.KAPPA
    # then a fork needs a larger one, and inherits what was counted
    with pytest.raises(RuleBroken, match="larger --set kappa"):
        fork("toy", store=store, strategies=endless())
    child = fork("toy", store=store, strategies=endless(), changes={"kappa": 5})
    assert (state_of(store, child).kappa, state_of(store, child).confirmations) == (
        3,
        state_of(store, "toy").confirmations,
    )
    nothing = simulated(gain=lambda applied, workload: 1.0)
    search.resume(child, store=store, strategies=endless(), harness=nothing)
    assert len(events_of(store, child, AuditCompleted)) == 1 + 5


def test_changes_of_policy_are_recorded_and_unknown_keys_refused(store: Store) -> None:
    run_toy(store, audits=2)
    child = fork("toy", store=store, changes={"seed": 7, "audits": 9})
    (forked,) = own_events(store, child)
    assert isinstance(forked, CampaignForked)
    changes = {change.key: (change.before, change.after) for change in forked.changes}
    assert changes["policy.audits"] == ('{"audits":2}', '{"audits":9}')
    assert set(changes) == {"policy.audits", "policy.seed"}
    assert not forked.stale
    with pytest.raises(KernelbraidError, match="speed is no policy key"):
        fork("toy", store=store, changes={"speed": 7})
    with pytest.raises(KernelbraidError, match="no such value"):
        fork("toy", store=store, changes={"kappa": 0})


# --- on other ground -----------------------------------------------------------------------------------------------


class Elsewhere(SimulatedHarness):
    """A simulated harness on another machine, or of another make."""

    changed: dict[str, Any]

    def environment(self) -> Environment:
        """The simulated machine with some fields changed."""
        return replace(super().environment(), **self.changed)


def elsewhere(changed: dict[str, Any], gain: Callable[[frozenset[str], Workload], float] = told_gain) -> HarnessFactory:
    """A factory of harnesses whose environment differs in these fields."""

    def factory(operator: Operator, target: str) -> Any:
        harness = Elsewhere(operator, 0, latency(gain), failing("stream"))
        harness.changed = changed
        return harness

    return factory


OTHER_MACHINE = {"cpu_model": "another"}
OTHER_HARNESS = {"harness_digest": "f" * 64}


def environment_source(factory: HarnessFactory) -> Any:
    """A harness to ask for its environment."""
    return factory(load_operator(TOY), "cpu")


@pytest.mark.parametrize("changed", [OTHER_MACHINE, OTHER_HARNESS], ids=["another machine", "another harness"])
def test_on_other_ground_root_best_and_frontier_are_audited_again_before_any_action(
    store: Store, changed: dict[str, Any]
) -> None:
    # given a campaign with a best and a frontier, forked for another machine or another harness
    run_toy(store, pause_requested=paused_after(4))
    before = state_of(store, "toy")
    due = [ROOT, before.best, *(name for name in before.frontier if name not in (ROOT, before.best))]
    assert len(due) > 2
    factory = elsewhere(changed)
    fork("toy", store=store, name="child", harness=environment_source(factory))
    assert list(state_of(store, "child").stale) == due
    # when it goes on there
    goes_on(store, "child", factory)
    # then those are audited first, in that order, and only then anything new is tried
    own = [event for event in own_events(store, "child") if isinstance(event, AuditCompleted | ActionProposed)]
    assert [event.implementation for event in own[: len(due)] if isinstance(event, AuditCompleted)] == due
    assert isinstance(own[len(due)], ActionProposed)
    contract = own_events(store, "child")[0]
    assert isinstance(contract, CampaignForked)
    assert contract.stale
    assert ("contract.harness_digest" in {change.key for change in contract.changes}) == (changed is OTHER_HARNESS)
    # and it ends well: its best was measured here, its log holds and is decided again
    state = state_of(store, "child")
    assert state.best is not None
    assert not state.implementations[state.best].stale
    assert store.verify("child").problems == ()
    replays(store, "child")


def test_where_the_best_does_not_pay_elsewhere_another_takes_its_place(store: Store) -> None:
    # given a machine on which tiling the full path loses
    def gain(applied: frozenset[str], workload: Workload) -> float:
        return told_gain(applied, workload) / (3.0 if "full_tile" in applied and workload.name == "full" else 1.0)

    run_toy(store, pause_requested=paused_after(4))
    best = state_of(store, "toy").best
    factory = elsewhere(OTHER_MACHINE, gain)
    fork("toy", store=store, name="child", harness=environment_source(factory))
    goes_on(store, "child", factory)
    # then the child ends with a best of another line
    state = state_of(store, "child")
    assert state.best not in (None, best)
    assert "full_tile" not in state.implementations[state.best or ""].mechanisms
    replays(store, "child")


def test_where_the_best_fails_elsewhere_it_leaves_the_frontier(store: Store) -> None:
    run_toy(store, pause_requested=paused_after(4))
    best = state_of(store, "toy").best

    class Strict(Elsewhere):
        changed = OTHER_MACHINE

    def factory(operator: Operator, target: str) -> Any:
        return Strict(operator, 0, latency(), failing("stream", "full_tile"))

    fork("toy", store=store, name="child", harness=environment_source(factory))
    goes_on(store, "child", factory)
    state = state_of(store, "child")
    assert state.implementations[best or ""].standing == "failed"
    assert state.best not in (None, best, ROOT)
    replays(store, "child")


def test_where_the_root_fails_elsewhere_the_child_stops(store: Store) -> None:
    run_toy(store, audits=4)

    class Broken(Elsewhere):
        changed = OTHER_MACHINE

    def factory(operator: Operator, target: str) -> Any:
        return Broken(operator, 0, latency(), lambda candidate: Correctness.BUILD_FAILED)

    fork("toy", store=store, name="child", harness=environment_source(factory))
    assert goes_on(store, "child", factory).stop_reason == StopReason.ROOT_UNQUALIFIED
    replays(store, "child")


def test_a_resume_on_another_machine_is_refused_with_the_advice_to_fork(store: Store) -> None:
    run_toy(store, pause_requested=paused_after(3))
    position = store.position("toy")
    with pytest.raises(RuleBroken, match=r"environment changed.*fork it, and the fork audits root, best and frontier"):
        goes_on(store, "toy", elsewhere(OTHER_MACHINE))
    assert store.position("toy") == position
    assert not events_of(store, "toy", CampaignResumed)


def test_figures_of_two_machines_are_never_compared(store: Store) -> None:
    # given a deferred sibling whose parent is archived, and a fork to a machine four times as fast
    run_toy(store, pause_requested=paused_after(4))
    (deferred,) = state_of(store, "toy").merge_list
    factory = elsewhere(OTHER_MACHINE, lambda applied, workload: 4 * told_gain(applied, workload))
    fork("toy", store=store, name="child", harness=environment_source(factory))
    goes_on(store, "child", factory)
    # then the merge is raised on what was promised, since only one side was measured here
    merge = next(
        event
        for event in own_events(store, "child")
        if isinstance(event, OpportunityRaised) and deferred in event.parents
    )
    assert "as expected; its parent was not measured here" in merge.evidence
    assert 1.0 < merge.expected_gain_ratio < 1.3
    replays(store, "child")


def test_a_driver_that_dies_while_judging_again_leaves_the_rest_to_the_next(store: Store) -> None:
    run_toy(store, pause_requested=paused_after(4))
    factory = elsewhere(OTHER_MACHINE)
    fork("toy", store=store, name="child", harness=environment_source(factory))
    due = list(state_of(store, "child").stale)
    with pytest.raises(ConnectionAbortedError):
        search.resume("child", store=store, harness=factory, watch=dying_after(2, AuditCompleted))
    goes_on(store, "child", factory)
    own = [event for event in own_events(store, "child") if isinstance(event, AuditCompleted)]
    assert [event.implementation for event in own[: len(due)]] == due
    replays(store, "child")


# --- elsewhere, as a file ------------------------------------------------------------------------------------------


def test_an_exported_child_can_be_driven_elsewhere_and_its_origin_s_prefix_only_read_and_forked(
    store: Store, tmp_path: Path
) -> None:
    # given a child whose origin went on, exported and imported into another store
    run_toy(store, pause_requested=paused_after(4))
    at = store.position("toy")
    fork("toy", store=store, name="child")
    goes_on(store, "toy")
    store.export("child", tmp_path / "child.export")
    other = open_store(f"sqlite:///{tmp_path}/other.db")
    other.import_(tmp_path / "child.export")
    assert digest(other, "child") == digest(store, "child")
    # then the child is driven there and replays, to the same end as here
    goes_on(other, "child")
    goes_on(store, "child")
    replays(other, "child")
    assert [item[-1] for item in story(other.read("child"))] == [item[-1] for item in story(store.read("child"))]
    # and the origin's prefix is read and forked, not driven
    assert other.position("toy") == at
    with pytest.raises(NotDrivable):
        goes_on(other, "toy")
    sibling = fork("toy", store=other)
    goes_on(other, sibling)
    # until the whole origin is imported, which extends the prefix
    store.export("toy", tmp_path / "toy.export")
    other.import_(tmp_path / "toy.export")
    assert digest(other, "toy") == digest(store, "toy")
    assert isinstance(next(iter(other.read(sibling))).event, CampaignOpened)
    replays(other, sibling)
    other.close()


def test_the_harness_of_a_fork_is_entered_nowhere(store: Store) -> None:
    class Unused(Elsewhere):
        changed = OTHER_MACHINE

        def __enter__(self) -> Self:
            raise AssertionError("a fork audits nothing")

    run_toy(store, audits=1)
    fork("toy", store=store, harness=Unused(load_operator(TOY), 0))
