"""Recompute every measurement in a log from the blocks it cites: no machine, no clock, only arithmetic."""

from collections.abc import Callable, Iterator

from kernelbraid.agents import auditor
from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.chain import Problem
from kernelbraid.events.errors import StoreError
from kernelbraid.events.event import Event
from kernelbraid.events.state import State, evolve
from kernelbraid.events.store import Store
from kernelbraid.events.values import Latencies
from kernelbraid.kernels.audit.outcome import CANDIDATE, ROOT, Blocks

ReadBlob = Callable[[str], bytes]


def recheck(store: Store, name: str) -> tuple[Problem, ...]:
    """Every recorded figure that its own blocks do not give, by position; empty when all of them do."""
    state, problems = State(), []
    for recorded in store.read(name):
        for what in _problems(state, recorded.event, store.blob):
            problems.append(Problem(recorded.position, what))
        evolve(state, recorded)
    return tuple(problems)


def _problems(state: State, event: Event, read_blob: ReadBlob) -> Iterator[str]:
    try:
        if isinstance(event, AuditCompleted | TimingCompleted) and event.measurement is not None:
            yield from _measurement(state, event, read_blob)
        elif isinstance(event, RootQualified) and event.blocks:
            yield from _qualification(event, read_blob)
    except (StoreError, ValueError) as error:
        yield f"its blocks cannot be read: {error}"


def _measurement(state: State, event: AuditCompleted | TimingCompleted, read_blob: ReadBlob) -> Iterator[str]:
    measurement = event.measurement
    assert measurement is not None
    blocks = [read_blob(digest) for digest in measurement.blocks]
    if not blocks:
        yield f"{event.implementation}: no blocks stand behind its measurement"
        return
    performance, again = auditor.judge(
        state.specified().contract,
        incumbent=measurement.incumbent,
        blocks=blocks,
        confirmed=measurement.confirmation is not None,
        confirmation=measurement.confirmation or 0,
        seed=auditor.bootstrap_seed(state.specified().policy.seed, event.implementation),
    )
    if performance is not event.performance:
        yield f"{event.implementation}: recorded as {event.performance}, its blocks say {performance}"
    if again != measurement:
        yield f"{event.implementation}: recorded ratio {measurement.ratio!r}, its blocks give {again.ratio!r}"
    if not _same(event.latencies_s, blocks[-1], CANDIDATE):
        yield f"{event.implementation}: its latencies are not the medians of its blocks"


def _qualification(event: RootQualified, read_blob: ReadBlob) -> Iterator[str]:
    stored = read_blob(event.blocks[-1])
    if not _same(event.latencies_s, stored, ROOT):
        yield "the root's latencies are not the medians of its blocks"
    for baseline in event.baselines:
        if not _same(baseline.latencies_s, stored, baseline.name):
            yield f"{baseline.name}: its latencies are not the medians of the root's blocks"


def _same(latencies_s: Latencies, stored: bytes, arm: str) -> bool:
    return latencies_s == dict(Blocks.from_bytes(stored).medians_s(arm))
