"""Everything that a log amounts to, as digests: every projection folded, on two cores where the log is long.

Projections are independent folds, so a long log is read by two processes at once: another one checks the chain of
hashes, validates every payload and folds all but the decider's state; this one folds the state from the same rows, on
the other's word. Only digests pass between them. Where either half fails, one process does everything again, checks
it all and finds what is wrong.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import orjson

from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store, open_store
from kernelbraid.ops.collector import uncollected
from kernelbraid.projections.digest import fold_digest, state_digest
from kernelbraid.projections.ledger import LEDGER
from kernelbraid.projections.lineage import LINEAGE
from kernelbraid.projections.metrics import METRICS
from kernelbraid.projections.performance import PERFORMANCE
from kernelbraid.projections.projection import STATE, Fold, Projection, rebuild
from kernelbraid.projections.timeline import KEPT_ENTRIES, TIMELINE, TimelineFold

BESIDE_STATE: tuple[Projection[Any], ...] = (LINEAGE, METRICS, LEDGER, PERFORMANCE)
"""Every accumulator of a whole log but the decider's state, which frontier and stopping read."""
SHARED_FROM_EVENTS = 200_000
"""From here on a second process gains more than its start costs: one alone was quicker at 100,000 events."""
UNREADABLE = (KernelbraidError, AttributeError, LookupError, TypeError, ValueError, AssertionError)
"""What a changed row can lead to where nothing is checked."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A log's state and its digests, by projection: the state's first."""

    state: State
    digests: dict[str, str]
    processes: int


def rebuilt(store: Store, campaign: str, upto: int | None = None) -> Rebuilt:
    """Checks the chain, folds every projection and digests it; the result is the same however many processes do it.

    Raises CampaignMissing, LogDamaged, EventInvalid, as reading does.
    """
    last = store.position(campaign) if upto is None else upto
    with uncollected():
        return (_shared if _worth_sharing(store, last) else _alone)(store, campaign, last)


def _shared(store: Store, campaign: str, last: int) -> Rebuilt:
    with _other_half(store.url, campaign, last) as other:
        try:
            state = fold(store.read(campaign, upto=last, checked=False))
            digest = state_digest(state)
        except UNREADABLE:
            return _alone(store, campaign, last)
        answer, _ = other.communicate()
    if other.returncode != 0:
        return _alone(store, campaign, last)
    return Rebuilt(state, {STATE.name: digest, **cast(dict[str, str], orjson.loads(answer))}, processes=2)


def _worth_sharing(store: Store, events: int) -> bool:
    # A store in memory is nowhere else to be read.
    return events >= SHARED_FROM_EVENTS and len(os.sched_getaffinity(0)) > 1 and store.url.startswith("sqlite:///")


def _alone(store: Store, campaign: str, last: int) -> Rebuilt:
    folded = rebuild(store.read(campaign, upto=last), STATE, *BESIDE_STATE)
    digests = {STATE.name: state_digest(folded[STATE]), **_digests_beside(store, campaign, folded)}
    return Rebuilt(folded[STATE], digests, processes=1)


def _digests_beside(store: Store, campaign: str, folded: Fold) -> dict[str, str]:
    digests = {projection.name: fold_digest(folded[projection]) for projection in BESIDE_STATE}
    return {**digests, TIMELINE.name: fold_digest(_end(store, campaign, folded.position))}


def _end(store: Store, campaign: str, last: int) -> TimelineFold:
    """The timeline of a log depends on its last events alone; keeping a thousand on the whole way costs a tenth."""
    return rebuild(store.read(campaign, after=max(0, last - KEPT_ENTRIES), upto=last), TIMELINE)[TIMELINE]


@contextmanager
def _other_half(url: str, campaign: str, last: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of its own that prints the other projections' digests; it does not outlive the block."""
    command = [sys.executable, "-m", "kernelbraid.ops.digests", url, campaign, str(last)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        try:
            yield other
        finally:
            other.kill()


def _main(url: str, campaign: str, last: str) -> None:
    store = open_store(url, read_only=True)
    try:
        with uncollected():
            folded = rebuild(store.read(campaign, upto=int(last)), *BESIDE_STATE)
            sys.stdout.buffer.write(orjson.dumps(_digests_beside(store, campaign, folded)))
    finally:
        store.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
