"""Committing beside others: a decision is made again, and what was paid for outside is kept."""

import threading
from typing import Any

from kernelbraid.agents import auditor, search
from kernelbraid.agents.campaign import Campaign
from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.campaign import CampaignStopped, NoteAdded
from kernelbraid.events.event import Decision, Recorded
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store
from tests.agents.stage import Stage, mechanism
from tests.campaign.toy import events_of


class Meddled:
    """A store into which somebody else appends right before a driver's append."""

    def __init__(self, store: Store, *meddling: Any) -> None:
        self._store = store
        self._meddling = list(meddling)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, campaign: str, expected_position: int, decision: Decision, **more: Any) -> tuple[Recorded, ...]:
        """The append, after somebody else's."""
        if self._meddling:
            self._meddling.pop(0)(self._store)
        return self._store.append(campaign, expected_position, decision, **more)


def note(store: Store) -> None:
    """Somebody notes something."""
    search.note(store, "toy", "from elsewhere")


def stop(store: Store) -> None:
    """Somebody stops the campaign."""
    search.stop(store, "toy")


def under_audit(store: Store, **options: Any) -> Stage:
    """A stage with one offspring submitted."""
    stage = Stage(store, mechanism("lanes", 2.0), gains={"lanes": 2.0}, **options)
    stage.plan()
    stage.plan()
    stage.edit("a0001")
    return stage


def test_a_note_between_fold_and_append_lets_the_audit_be_recorded_without_a_second_one(store: Store) -> None:
    # given an audit that was paid for, and notes that get in before it is recorded, three times
    stage = under_audit(store)
    found = stage.found("i0001")
    decided: list[int] = []

    def decide(state: State) -> Decision | None:
        decided.append(state.position)
        return auditor.record_audit(state, "i0001", found)

    audits = stage.audits
    recorded = Campaign(Meddled(store, note, note, note), "toy").commit(decide)
    # then the decision was made again each time, at the new state, and the harness never asked again
    assert decided == list(range(decided[0], decided[0] + 4))
    assert [type(item.event).__name__ for item in recorded] == ["AuditCompleted", "ImplementationPromoted"]
    assert stage.audits == audits
    assert len(events_of(store, "toy", NoteAdded)) == 3


def test_a_stop_between_fold_and_append_keeps_the_audit_and_takes_the_promotion(store: Store) -> None:
    stage = under_audit(store)
    found = stage.found("i0001")
    recorded = Campaign(Meddled(store, stop), "toy").commit(lambda state: auditor.record_audit(state, "i0001", found))
    assert [type(item.event) for item in recorded] == [AuditCompleted]
    assert len(events_of(store, "toy", CampaignStopped)) == 1
    assert fold(store.read("toy")).best == "i0000"


def test_a_decision_that_is_moot_after_a_conflict_is_not_made(store: Store) -> None:
    stage = under_audit(store)
    found = stage.found("i0001")

    def beforehand(inner: Store) -> None:
        Campaign(inner, "toy").commit(lambda state: auditor.record_audit(state, "i0001", found))

    recorded = Campaign(Meddled(store, beforehand), "toy").commit(
        lambda state: auditor.record_audit(state, "i0001", found)
    )
    assert recorded == ()
    assert len([event for event in events_of(store, "toy", AuditCompleted) if event.implementation == "i0001"]) == 1


def test_the_moment_recorded_is_the_decision_s(store: Store) -> None:
    # given a decision that takes a while to store
    Stage(store, mechanism("lanes"))
    campaign = Campaign(Meddled(store, lambda inner: threading.Event().wait(0.2)), "toy")
    seen: list[float] = []

    def decide(state: State) -> Decision:
        seen.append(campaign.idle_s())
        return Decision("driver", state.fact_position, decider.note(state, "now"))

    before = fold(store.read("toy")).driven_at
    (item,) = campaign.commit(decide)
    # then the log shows the clock as the decision saw it
    assert before is not None
    assert (item.recorded_at - before).total_seconds() == seen[0]


def test_many_threads_and_a_stranger_lose_nothing(store: Store) -> None:
    Stage(store, mechanism("lanes"))
    campaign = Campaign(store, "toy")

    def write(notes: Campaign, who: str) -> None:
        for number in range(10):
            text = f"{who} {number}"
            notes.commit(lambda state: Decision("user", state.fact_position, decider.note(state, text)))  # noqa: B023

    strangers = [Campaign(store, "toy") for _ in range(2)]
    writers = [threading.Thread(target=write, args=(campaign, f"own {n}")) for n in range(3)]
    writers += [threading.Thread(target=write, args=(item, f"other {n}")) for n, item in enumerate(strangers)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    texts = [event.text for event in events_of(store, "toy", NoteAdded)]
    assert len(texts) == len(set(texts)) == 50
    assert store.verify("toy").problems == ()
    assert campaign.read(lambda state: state.position) == store.position("toy")
