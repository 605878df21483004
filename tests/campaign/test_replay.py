"""Rebuild, and strict replay: the same log gives the same state anywhere, and today's agents decide it again."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kernelbraid.agents import search
from kernelbraid.agents.catalogue.brancher import CatalogueBrancher
from kernelbraid.agents.catalogue.editor import CatalogueEditor
from kernelbraid.agents.catalogue.planner import CataloguePlanner
from kernelbraid.agents.replay import Divergence, batches, replay_strict
from kernelbraid.agents.search import Strategies, catalogue_strategies
from kernelbraid.agents.strategy import Desk, Draft, Events
from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.campaign import CampaignPaused, CampaignStopped, NoteAdded
from kernelbraid.events.errors import BlobMissing
from kernelbraid.events.event import Decision, Event, Recorded
from kernelbraid.events.lineage import BranchArchived, BranchContinued
from kernelbraid.events.search import ActionProposed, ImplementationSubmitted
from kernelbraid.events.state import Action, Implementation, State, fold
from kernelbraid.events.store import Store, named_blobs, open_store
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.projections.digest import state_digest
from tests.campaign import toy
from tests.campaign.endless import endless
from tests.campaign.toy import events_of, memory, run_toy, simulated


@pytest.fixture(scope="module")
def searched() -> Iterator[Store]:
    """A store with one finished campaign, `toy`."""
    with memory() as store:
        run_toy(store)
        yield store


def divergence(store: Store, campaign: str = "toy", **changed: Any) -> Divergence:
    """Where a replay with changed strategies ends; there must be such a place."""
    report = replay_strict(store, campaign, strategies=replace(catalogue_strategies(), **changed))
    assert report.divergence is not None
    return report.divergence


def agrees(store: Store, campaign: str = "toy", strategies: Strategies | None = None) -> None:
    """Every decision of the log is made again."""
    report = replay_strict(store, campaign, strategies=strategies)
    assert report.divergence is None, report.divergence
    assert (report.events, report.warnings) == (store.position(campaign), ())


# --- rebuild -------------------------------------------------------------------------------------------------------

PRINT_DIGEST = (
    "import sys; from kernelbraid.events.state import fold; from kernelbraid.events.store import open_store; "
    "from kernelbraid.projections.digest import state_digest; "
    "print(state_digest(fold(open_store(sys.argv[1], read_only=True).read(sys.argv[2]))))"
)


def folding_elsewhere(url: str, campaign: str, hash_seed: str) -> "subprocess.Popen[str]":
    """A fresh process with this hash seed that prints the digest it folds."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PRINT_DIGEST, url, campaign]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_processes_with_other_hash_seeds_and_an_imported_log_give_the_same_digest(tmp_path: Path) -> None:
    # given a finished campaign, exported and imported elsewhere
    first, second = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    here, there = open_store(first), open_store(second)
    run_toy(here, parallel=4)
    expected = state_digest(fold(here.read("toy")))
    here.export("toy", tmp_path / "toy.export")
    there.import_(tmp_path / "toy.export")
    here.close()
    there.close()
    # when processes with different hash seeds fold one and the other
    folding = [folding_elsewhere(first, "toy", "1"), folding_elsewhere(second, "toy", "4242")]
    digests = {process.communicate(timeout=120)[0].strip() for process in folding}
    # then all agree
    assert digests == {expected}


def test_a_state_at_any_position_is_the_fold_of_the_log_up_to_there(searched: Store) -> None:
    whole = State()
    for batch in batches(searched.read("toy")):
        fold(batch, whole)
        again = fold(searched.read("toy", upto=whole.position))
        assert state_digest(again) == state_digest(whole)


# --- strict replay agrees ------------------------------------------------------------------------------------------


def test_a_finished_campaign_is_decided_again_in_every_field(searched: Store) -> None:
    agrees(searched)


class InOrder:
    """Lets the audits that run at the same time finish in a chosen order of their starting."""

    def __init__(self, order: Callable[[int], float]) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._started = 0

    def __call__(self, candidate: Candidate) -> float:
        """Seconds that this audit takes."""
        with self._lock:
            self._started += 1
            return 0.012 * self._order(self._started)


ORDERS = {
    "first in, first out": lambda number: number % 4,
    "reverse": lambda number: 3 - number % 4,
    "random": lambda number: (7 * number * number + 3 * number) % 5,
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_parallel_audits_replay_in_whatever_order_they_finished(order: Callable[[int], float]) -> None:
    with memory() as store:
        # given four audits at a time that finish in this order
        run_toy(store, harness=simulated(delay_s=InOrder(order)), parallel=4)
        # then the log is decided again as it stands
        agrees(store)


def test_audits_did_finish_in_another_order_than_they_began() -> None:
    with memory() as store:
        run_toy(store, harness=simulated(delay_s=InOrder(ORDERS["reverse"])), parallel=4)
        audited = [event.implementation for event in events_of(store, "toy", AuditCompleted)]
        assert audited != sorted(audited)


def test_commands_from_elsewhere_inside_the_log_do_not_disturb() -> None:
    with memory() as store:
        # given notes, pauses and resumes in the middle of a search, and a stop at its end
        asked = iter([None, None, "lunch", None, None, "tea", *[None] * 100])

        def watch(recorded: Recorded, state: State) -> None:
            if isinstance(recorded.event, ImplementationSubmitted):
                search.note(store, "toy", f"saw {recorded.event.implementation}")

        def pause_requested() -> str | None:
            return next(asked)

        run_toy(store, watch=watch, pause_requested=pause_requested, parallel=2)
        while store_status(store) == "paused":
            search.resume("toy", store=store, harness=simulated(), watch=watch, pause_requested=pause_requested)
            if store.position("toy") > 60 and store_status(store) != "stopped":
                search.stop(store, "toy", "enough")
        # then the replay agrees, though it was not asked about any of them
        assert len(events_of(store, "toy", CampaignPaused)) == 2
        assert events_of(store, "toy", NoteAdded)
        agrees(store)


def store_status(store: Store) -> str:
    """The campaign's status."""
    return fold(store.read("toy")).status


def test_a_stop_by_the_user_while_an_audit_runs_replays() -> None:
    with memory() as store:

        def stop_inside(candidate: Candidate) -> float:
            if toy.marks(candidate) == {"lanes", "full_tile"}:
                search.stop(store, "toy")
            return 0.0

        run_toy(store, harness=simulated(delay_s=stop_inside))
        # then the stop is in the log before the running audit's result, and both are decided again
        last = [item.event for item in store.read("toy")][-2:]
        assert [type(event) for event in last] == [CampaignStopped, AuditCompleted]
        agrees(store)


def test_a_stop_by_the_wall_clock_replays() -> None:
    with memory() as store:
        # given a search without an end but its time
        slow = simulated(delay_s=lambda candidate: 0.03)
        summary = run_toy(store, harness=slow, strategies=endless(), wall_s=0.3, kappa=100, parallel=2)
        assert summary.stop_reason == "budget"
        assert events_of(store, "toy", CampaignStopped)[0].detail == "wall"
        # then the clock of the log ends it at the same place
        agrees(store, strategies=endless())


def test_a_resumed_campaign_replays_although_work_was_left_open_at_the_crash() -> None:
    with memory() as store:
        # given a driver that dies at every twentieth event, with actions open
        while store_position(store) == 0 or store_status(store) != "stopped":
            try:
                die = dying_after(20)
                if store_position(store) == 0:
                    run_toy(store, watch=die, parallel=3)
                else:
                    search.resume("toy", store=store, harness=simulated(), watch=die)
            except ConnectionAbortedError:
                continue
        agrees(store)


def store_position(store: Store) -> int:
    """The last position, 0 without a campaign."""
    return max((row.position for row in store.campaigns()), default=0)


def dying_after(events: int) -> Callable[[Recorded, State], None]:
    """A watch that fails at the so-manieth event it sees."""
    seen: list[int] = []

    def watch(recorded: Recorded, state: State) -> None:
        seen.append(recorded.position)
        if len(seen) >= events:
            raise ConnectionAbortedError

    return watch


# --- strict replay stops at the first divergence -------------------------------------------------------------------


class LastFirst(CataloguePlanner):
    """Prefers the youngest opportunity."""

    def choose(self, state: State, desk: Desk) -> Events:
        """The catalogue's action, but for the last pending opportunity."""
        events = super().choose(state, desk)
        if not events:
            return ()
        last = state.opportunities[list(state.pending)[-1]]
        assert isinstance(events[0], ActionProposed)
        return (events[0].model_copy(update={"opportunity": last.id, "scope": last.scope}),)


class NeverContinues(CatalogueBrancher):
    """Archives what the catalogue would continue for its follow-up."""

    def judge(self, state: State, implementation: Implementation, desk: Desk) -> Events:
        """The catalogue's judgement, unless it continues a loser."""
        events = super().judge(state, implementation, desk)
        if implementation.id == state.best or not any(isinstance(event, BranchContinued) for event in events):
            return events
        return decider.archive_branch(state, implementation.id, "never continued")


class Signs(CatalogueEditor):
    """Leaves a line of its own in every offspring."""

    def edit(self, state: State, action: Action, desk: Desk) -> Draft:
        """The catalogue's draft with one more line."""
        draft = super().edit(state, action, desk)
        return replace(draft, sources={name: text + "/* signed */\n" for name, text in draft.sources.items()})


def test_another_choice_of_the_planner_is_the_first_divergence(searched: Store) -> None:
    found = divergence(searched, planner=LastFirst())
    # then it is the first action of the log, with both sides
    assert found.actor == "planner"
    assert found.position == first_position(searched, ActionProposed)
    recorded, decided = found.recorded[0], found.decided[0]
    assert isinstance(recorded, ActionProposed)
    assert isinstance(decided, ActionProposed)
    assert (recorded.opportunity, decided.opportunity) == ("o0001", "o0003")


def test_a_brancher_that_archives_instead_diverges_at_the_first_continued_loser(searched: Store) -> None:
    found = divergence(searched, brancher=NeverContinues())
    losers = [
        item.position
        for item in searched.read("toy")
        if isinstance(item.event, BranchContinued) and item.event.opportunity is not None
    ]
    assert found.position in range(losers[0] - 1, losers[0] + 1)
    assert isinstance(found.recorded[-1], BranchContinued)
    assert [type(event) for event in found.decided] == [BranchArchived]


def test_an_editor_that_writes_otherwise_diverges_at_its_first_source(searched: Store) -> None:
    found = divergence(searched, editor=Signs())
    assert found.position == first_position(searched, ImplementationSubmitted)
    recorded, decided = found.recorded[0], found.decided[0]
    assert isinstance(recorded, ImplementationSubmitted)
    assert isinstance(decided, ImplementationSubmitted)
    assert recorded.sources[0].digest != decided.sources[0].digest
    assert recorded.mechanisms == decided.mechanisms


def test_an_auditor_that_spends_another_error_diverges_at_the_first_confirmation(
    searched: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = decider.confirmation_alpha
    monkeypatch.setattr(decider, "confirmation_alpha", lambda k: spent(k) / 2)
    found = divergence(searched)
    recorded, decided = found.recorded[0], (found.decided or (None,))[0]
    assert found.actor == "auditor"
    assert isinstance(recorded, AuditCompleted)
    assert recorded.measurement is not None
    assert recorded.measurement.confirmation == 1
    assert isinstance(decided, AuditCompleted)
    assert decided.measurement is not None
    assert decided.measurement.alpha == spent(1) / 2


def first_position(store: Store, kind: type) -> int:
    """The position of the first event of a kind."""
    return next(item.position for item in store.read("toy") if isinstance(item.event, kind))


# --- what is due and missing ---------------------------------------------------------------------------------------


def copied(store: Store, into: Store, appends: Iterable[tuple[Recorded, ...]]) -> None:
    """Some of the campaign's appends in a log of their own; causes follow the events that they cite."""
    places = {0: 0}
    for batch in appends:
        blobs = tuple(store.blob(digest) for item in batch for digest in named_blobs(item.event))
        cause = places[max(place for place in places if place <= batch[0].cause)]
        decision = Decision(batch[0].actor, cause, tuple(item.event for item in batch), blobs)
        recorded = into.append("toy", max(places.values()), decision, recorded_at=batch[0].recorded_at)
        places |= {old.position: new.position for old, new in zip(batch, recorded, strict=True)}


def index_of(appends: list[tuple[Recorded, ...]], kind: type[Event], **fields: str) -> int:
    """The first append that begins with such an event."""
    return next(
        index
        for index, batch in enumerate(appends)
        if isinstance(batch[0].event, kind) and fields.items() <= dict(batch[0].event).items()
    )


def test_a_brancher_that_skipped_its_decision_is_found_before_the_next_action(searched: Store) -> None:
    with memory() as forged:
        # given a log whose driver went on without the brancher's decision on a loser
        appends = list(batches(searched.read("toy")))
        skipped = index_of(appends, BranchArchived, implementation="i0002")
        copied(searched, forged, appends[:skipped] + appends[skipped + 1 : skipped + 3])
        # then the missing decision is the divergence: the log's side is what came instead
        found = divergence(forged)
        assert "a decision of the brancher on i0002 is due before this and missing" in found.reason
        assert found.decided == tuple(item.event for item in appends[skipped])
        assert isinstance(found.recorded[0], ActionProposed)


def test_an_audit_that_nobody_made_is_found_before_the_next_action() -> None:
    with memory() as store, memory() as forged:
        # given two audits at a time, and a log without the verdict that came last before the planner went on
        slow = simulated(delay_s=lambda candidate: 0.05 if "wide" in toy.marks(candidate) else 0.0)
        run_toy(store, harness=slow, parallel=2, audits=6)
        appends = list(batches(store.read("toy")))
        wide = next(
            event.implementation
            for event in events_of(store, "toy", ImplementationSubmitted)
            if event.mechanisms == ("lanes", "wide")
        )
        audit = index_of(appends, AuditCompleted, implementation=wide)
        planned = next(n for n in range(audit, len(appends)) if appends[n][0].actor == "planner")
        copied(store, forged, [*appends[:audit], appends[planned]])
        # then it is named
        assert f"a decision of the auditor on {wide} is due before this and missing" in divergence(forged).reason


def test_an_action_that_the_planner_would_have_begun_beside_another_is_due_and_missing() -> None:
    with memory() as store, memory() as forged:
        # given two audits at a time, and a log from which the second action of the first round was left out
        run_toy(store, parallel=2)
        appends = list(batches(store.read("toy")))
        left_out = index_of(appends, ActionProposed, action="a0002")
        first = index_of(appends, ImplementationSubmitted, action="a0001")
        copied(store, forged, [*appends[:left_out], appends[first]])
        # then the planner's second action is named as missing
        found = divergence(forged)
        assert "a decision of the planner is due before this and missing" in found.reason
        assert found.decided == (appends[left_out][0].event,)


# --- what a replay never does --------------------------------------------------------------------------------------


def test_a_missing_fact_is_an_error_and_never_a_live_call(searched: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a store that has lost the timing blocks of the first offspring, and a harness that nobody may start
    audited = next(event for event in events_of(searched, "toy", AuditCompleted) if event.measurement is not None)
    lost = audited.measurement.blocks[0]

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return getattr(searched, name)

        def blob(self, digest: str) -> bytes:
            if digest == lost:
                raise BlobMissing(f"{digest} is not in the store")
            return searched.blob(digest)

    monkeypatch.setattr("kernelbraid.kernels.audit.harness.Harness", toy.no_harness)
    with pytest.raises(BlobMissing, match=lost):
        replay_strict(cast(Store, Forgetful()), "toy")


def test_a_replay_appends_and_audits_nothing(searched: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelbraid.kernels.audit.harness.Harness", toy.no_harness)
    before = searched.head("toy")
    agrees(searched)
    assert searched.head("toy") == before


def test_other_code_than_the_log_s_is_said_before_any_divergence(
    searched: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_agents_digest", lambda: "0" * 64)
    report = replay_strict(searched, "toy")
    assert report.divergence is None
    assert report.warnings == ("the agents code is not the one that made this log, so a divergence may come from that",)
