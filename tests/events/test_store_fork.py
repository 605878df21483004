"""Forks by reference: nothing is copied, neither side sees the other."""

from pathlib import Path

import pytest

from kernelbraid.events.campaign import NoteAdded
from kernelbraid.events.errors import CampaignExists, CampaignMissing, PositionMissing, StoreError
from kernelbraid.events.sqlite import SqliteStore
from tests.events.factory import NOON, campaign_of, decision, forked, iteration, log_of, notes


def rows_in(store: SqliteStore) -> int:
    """How many event rows the whole store holds."""
    with store.recorder.datastore.transaction(commit=False) as c:
        c.execute("SELECT count(*) FROM stored_events")
        return int(c.fetchone()[0])


def test_a_fork_reads_its_parent_up_to_there_and_then_its_own(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=5)
    before = log_of(store, "c")

    (event,) = store.fork("c", 4, "d", forked(store, "c", 4))
    store.append("d", 5, notes("child"))

    log = log_of(store, "d")
    assert log[:4] == before[:4]
    assert log[4] == event
    assert [(e.campaign, e.position) for e in log[3:]] == [("c", 4), ("d", 5), ("d", 6)]
    assert store.verify("d").problems == ()


def test_origin_and_fork_go_on_without_each_other(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=5)
    before, head = log_of(store, "c"), store.head("c")

    store.fork("c", 4, "d", forked(store, "c", 4))
    assert (log_of(store, "c"), store.head("c")) == (before, head)

    store.append("c", 6, notes("origin"))
    assert store.position("d") == 5
    assert [e.position for e in store.read("d", after=3)] == [4, 5]


@pytest.mark.parametrize(("after", "upto"), [(0, None), (2, 5), (3, 4), (4, None), (3, 3), (6, None)])
def test_a_stretch_across_the_fork_is_continuous(store: SqliteStore, after: int, upto: int | None) -> None:
    campaign_of(store, "c", notes_after=5)
    store.fork("c", 4, "d", forked(store, "c", 4))
    store.append("d", 5, notes("child"))

    positions = [event.position for event in store.read("d", after=after, upto=upto)]

    assert positions == list(range(after + 1, min(6, upto or 6) + 1))


def test_a_fork_is_one_row_however_long_its_parent(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=300)
    before = rows_in(store)

    store.fork("c", 301, "d", forked(store, "c", 301))

    assert rows_in(store) == before + 1


def test_a_fork_may_carry_what_it_drops(store: SqliteStore) -> None:
    campaign_of(store, "c")
    first = forked(store, "c", 1).events[0]

    events = store.fork("c", 1, "d", decision(first, NoteAdded(text="dropped")))

    assert [(event.position, event.batch) for event in events] == [(2, (1, 2)), (3, (2, 2))]


def test_a_fork_within_an_append_is_refused_with_where_to(store: SqliteStore) -> None:
    campaign_of(store, "c")
    store.append("c", 1, iteration(1))

    with pytest.raises(PositionMissing, match="fork at 1 or 6"):
        store.fork("c", 3, "d", forked(store, "c", 3))
    assert [row.name for row in store.campaigns()] == ["c"]


def test_a_fork_needs_its_place_its_name_and_its_citation(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=2)
    campaign_of(store, "d", notes_after=1)
    right = forked(store, "c", 2)

    with pytest.raises(PositionMissing, match="no position 9"):
        store.fork("c", 9, "e", right)
    with pytest.raises(CampaignMissing):
        store.fork("x", 1, "e", right)
    with pytest.raises(CampaignExists):
        store.fork("c", 2, "d", right)
    for wrong in (forked(store, "c", 1), forked(store, "d", 2), notes("x"), decision()):
        with pytest.raises(StoreError, match="CampaignForked"):
            store.fork("c", 2, "e", wrong)
    with pytest.raises(StoreError, match="by fork"):
        store.append("c", 3, right)
    assert len(store.campaigns()) == 2


def test_a_fork_is_retried_like_an_append(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=2)
    fork = forked(store, "c", 2)
    first = store.fork("c", 2, "d", fork, recorded_at=NOON)

    assert store.fork("c", 2, "d", fork, recorded_at=NOON) == first
    with pytest.raises(CampaignExists):
        store.fork("c", 2, "d", fork)


def test_a_fork_below_its_parents_own_start_continues_the_ancestor(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=5)
    store.fork("c", 4, "d", forked(store, "c", 4))

    store.fork("d", 2, "e", forked(store, "d", 2))

    assert [(e.campaign, e.position) for e in store.read("e")] == [("c", 1), ("c", 2), ("e", 3)]
    assert store.verify("e").problems == ()


def test_twenty_nested_forks_read_like_a_flat_copy(store: SqliteStore) -> None:
    campaign_of(store, "c0")
    texts = []
    for depth in range(20):
        parent, child = f"c{depth}", f"c{depth + 1}"
        at = store.position(parent)
        store.fork(parent, at, child, forked(store, parent, at))
        texts.append([f"{depth} {number}" for number in range(3)])
        store.append(child, at + 1, notes(*texts[-1]))
        store.append(parent, at, notes("the origin goes on"))

    campaign_of(store, "flat")
    for lines in texts:
        store.append("flat", store.position("flat"), notes("in the fork's place"))
        store.append("flat", store.position("flat"), notes(*lines))

    nested, flat = log_of(store, "c20"), log_of(store, "flat")
    assert [event.position for event in nested] == [event.position for event in flat] == list(range(1, 82))
    told = [e.event.text for e in nested if isinstance(e.event, NoteAdded)]
    assert told == [text for lines in texts for text in lines]
    assert store.verify("c20").problems == ()


def test_a_follower_of_a_fork_begins_in_its_parent(store: SqliteStore, tmp_path: Path) -> None:
    campaign_of(store, "c", notes_after=3)
    store.fork("c", 3, "d", forked(store, "c", 3))

    assert [event.position for event in store.follow("d", 1, stop=lambda: True)] == [2, 3, 4]
