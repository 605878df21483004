"""Recompute every measurement in a log from the blocks it cites, and every promotion from its measurement.

No machine, no clock, only arithmetic: whoever holds the log can do it. The arithmetic is today's; where a figure
differs and the log was measured under another version of the harness, that is said. Of every timing session, screen
or confirmation, figures are recorded that no edit of one sample leaves as they are; logs of before that have none,
and once a log has them all that follow must.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kernelbraid.agents import auditor
from kernelbraid.agents.alike import alike
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.chain import Problem
from kernelbraid.events.errors import StoreError
from kernelbraid.events.event import Event
from kernelbraid.events.state import State, evolve, objective_s
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT as ROOT_ID
from kernelbraid.events.values import Contract, Latencies, Performance, Session
from kernelbraid.kernels.audit import cuda as device_audit
from kernelbraid.kernels.audit.environment import harness_digest
from kernelbraid.kernels.audit.outcome import CANDIDATE, ROOT, Blocks

ReadBlob = Callable[[str], bytes]
Timed = AuditCompleted | TimingCompleted | RootQualified


def recheck(store: Store, name: str) -> tuple[Problem, ...]:
    """Every recorded figure that its own blocks do not give, by position; empty when all of them do."""
    state, problems, told = State(), [], False
    todays = (harness_digest(), harness_digest(Path(device_audit.__file__).parent))
    for recorded in store.read(name):
        event, found = recorded.event, list(_problems(state, recorded.event, store.blob))
        if isinstance(event, Timed):
            told = told or event.sessions is not None or _judged_by(state) in todays
            found += _untold(event) if told and event.sessions is None else []
        if found:
            note = (
                "" if _judged_by(state) in todays else " (it was recorded under another version of the audit harness)"
            )
            problems += [Problem(recorded.position, what + note) for what in found]
        evolve(state, recorded)
    return tuple(problems)


def _judged_by(state: State) -> str:
    return state.specified().contract.harness_digest


def _untold(event: "Timed") -> list[str]:
    """Whoever leaves the sessions' figures out makes a log look as if it were older than it is."""
    whose = ROOT_ID if isinstance(event, RootQualified) else event.implementation
    return [f"{whose}: the figures of its timing sessions are missing, which were recorded when this log was written"]


def _problems(state: State, event: Event, read_blob: ReadBlob) -> Iterator[str]:
    if isinstance(event, AuditCompleted | TimingCompleted) and event.measurement is not None:
        yield from _readable(event.implementation, _measurement(state, event, read_blob))
    elif isinstance(event, RootQualified) and event.blocks:
        yield from _readable(ROOT_ID, _qualification(state, event, read_blob))
    elif isinstance(event, ImplementationPromoted):
        yield from _promotion(state, event)


def _readable(implementation: str, problems: Iterator[str]) -> Iterator[str]:
    try:
        yield from problems
    except (StoreError, ValueError) as error:
        yield f"{implementation}: its blocks cannot be read: {error}"
    except KeyError as error:
        yield f"{implementation}: its blocks lack {error}"


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
    if event.sessions is not None:
        yield from _stages(state.specified().contract, event, blocks)
    if not alike(again, measurement):
        yield f"{event.implementation}: recorded ratio {measurement.ratio!r}, its blocks give {again.ratio!r}"
    if measurement.confirmation not in (None, state.confirmations + 1):
        went_before = f"{state.confirmations} went before"
        yield f"{event.implementation}: recorded as confirmation {measurement.confirmation}, {went_before}"
    if not _same(event.latencies_s, blocks[-1], CANDIDATE):
        yield f"{event.implementation}: its latencies are not the medians of its blocks"


def _stages(contract: Contract, event: AuditCompleted | TimingCompleted, blocks: Sequence[bytes]) -> Iterator[str]:
    """Every session's figures, and whether what the screen says is what was done."""
    assert event.measurement is not None
    assert event.sessions is not None
    confirmed = event.measurement.confirmation is not None
    names = ("screen", "confirmation") if confirmed else ("screen",)
    if len(blocks) != len(names):
        yield f"{event.implementation}: it has blocks of {len(blocks)} timing sessions, not of {' and '.join(names)}"
        return
    yield from _sessions(event.implementation, names, event.sessions, auditor.sessions_of(contract, blocks))
    if auditor.confirmation_due(contract, blocks[0]) is not confirmed:
        said = "leave a gain open, and no confirmation followed" if not confirmed else "rule out what was confirmed"
        yield f"{event.implementation}: the blocks of its screen {said}"


def _sessions(whose: str, names: Sequence[str], recorded: Sequence[Session], found: Sequence[Session]) -> Iterator[str]:
    if len(recorded) != len(found):
        yield f"{whose}: figures of {len(recorded)} timing sessions are recorded, it has blocks of {len(found)}"
    for name, one, other in zip(names, recorded, found, strict=False):
        if not alike(one, other):
            yield f"{whose}: its {name} is recorded as {_told(one)}, its blocks give {_told(other)}"


def _told(session: Session) -> str:
    parts = [f"{arm} {total_ns} ns" for arm, total_ns in {**session.totals_ns, "floors": session.floors_ns}.items()]
    return ", ".join([*parts, *([f"ratio {session.ratio:.9g}"] if session.ratio is not None else [])])


def _promotion(state: State, event: ImplementationPromoted) -> Iterator[str]:
    """A promotion repeats what its measurement says; the blocks behind that were recomputed where it was recorded."""
    node = state.implementations[event.implementation]
    measurement = node.measurement
    if measurement is None or node.performance is not Performance.PROMOTABLE:
        yield f"{event.implementation}: promoted without a measurement that says so"
        return
    if not measurement.incumbent == event.replaces == state.best:
        yield f"{event.implementation}: promoted over {event.replaces}, measured against {measurement.incumbent}"
    recorded = (event.objective_s, event.gain_ratio, event.speedup_ratio)
    if not alike(recorded, (measurement.objective_s, 1 / measurement.ratio, measurement.speedup_ratio)):
        yield f"{event.implementation}: promoted with other figures than its measurement has"


def _qualification(state: State, event: RootQualified, read_blob: ReadBlob) -> Iterator[str]:
    stored = read_blob(event.blocks[-1])
    if event.sessions is not None:
        found = auditor.sessions_of(state.specified().contract, [read_blob(digest) for digest in event.blocks])
        yield from _sessions(ROOT_ID, ["own timing"] * len(found), event.sessions, found)
    if not _same(event.latencies_s, stored, ROOT):
        yield f"{ROOT_ID}: the root's latencies are not the medians of its blocks"
    if not alike(event.objective_s, objective_s(state.specified(), event.latencies_s)):
        yield f"{ROOT_ID}: the root's objective is not the weighted sum of its latencies"
    for baseline in event.baselines:
        if not _same(baseline.latencies_s, stored, baseline.name):
            yield f"{baseline.name}: its latencies are not the medians of the root's blocks"


def _same(latencies_s: Latencies, stored: bytes, arm: str) -> bool:
    return alike(dict(latencies_s), dict(Blocks.from_bytes(stored).medians_s(arm)))
