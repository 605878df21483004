"""The auditor: runs the harness, and is the only translator between its findings and events.

The harness hands over blocks; which confirmation they are (k), at which alpha, and so whether the implementation
won, is settled here at append, from the state of that moment.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kernelbraid.agents.strategy import Desk
from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.blobs import digest_of
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.event import Decision
from kernelbraid.events.state import State
from kernelbraid.events.values import (
    ROOT,
    Baseline,
    Contract,
    Correctness,
    Environment,
    Infrastructure,
    Measurement,
    Performance,
    Session,
)
from kernelbraid.kernels.audit import outcome as found
from kernelbraid.kernels.audit import statistics
from kernelbraid.kernels.audit.outcome import AuditOutcome, Blocks, Candidate, Qualification, TimingOutcome

# --- what to audit -------------------------------------------------------------------------------------------------


def candidate(state: State, implementation: str, desk: Desk) -> Candidate:
    """An implementation as the harness takes it."""
    return Candidate(implementation, desk.sources(state.implementations[implementation]))


def baselines(desk: Desk) -> tuple[Candidate, ...]:
    """The builds that are shown beside the root."""
    return tuple(
        Candidate(item.name, desk.operator.baseline_sources(item, desk.target), item.flags)
        for item in desk.operator.baselines
    )


# --- findings into events ------------------------------------------------------------------------------------------


def record_root(state: State, qualification: Qualification) -> Decision | None:
    """The root's audit as a decision; None when it is not waiting for one."""
    if ROOT not in state.stale:
        return None
    audit, blobs = _audit_event(state, ROOT, None, qualification.root)
    shown = tuple(
        Baseline(name=name, latencies_s=dict(latencies_s)) for name, latencies_s in qualification.baselines.items()
    )
    stored = _block_blobs(qualification.root)
    digests, sessions = tuple(map(digest_of, stored)), sessions_of(state.specified().contract, stored)
    events = decider.complete_root_audit(state, audit, shown, digests, sessions)
    return Decision("auditor", state.fact_position, events, blobs)


def record_audit(state: State, implementation_id: str, outcome: AuditOutcome) -> Decision | None:
    """An offspring's audit as a decision; None when it is not waiting for one (any more)."""
    if not audit_due(state, implementation_id):
        return None
    implementation = state.implementations[implementation_id]
    action = None if implementation_id in state.stale else implementation.action
    audit, blobs = _audit_event(state, implementation_id, action, outcome)
    cause = implementation.submitted_at if action is not None else state.fact_position
    return Decision("auditor", cause, decider.complete_audit(state, audit), blobs)


def record_timing(state: State, implementation_id: str, outcome: TimingOutcome) -> Decision | None:
    """A repeated timing as a decision; None when it is not due (any more)."""
    if implementation_id not in state.retimings:
        return None
    implementation = state.implementations[implementation_id]
    measured = outcome.verdict is found.Correctness.VERIFIED
    judged = _judged(state, implementation_id, outcome) if measured else (Performance.UNDECIDED, None)
    timing = TimingCompleted(
        implementation=implementation_id,
        latencies_s=dict(outcome.latencies_s) if measured else {},
        performance=judged[0],
        measurement=judged[1],
        sessions=_sessions(state, outcome) if measured else (),
        evidence=outcome.evidence,
        environment=state.environment_digest,
        elapsed_s=outcome.timing_s,
    )
    return Decision("auditor", implementation.audited_at, decider.complete_timing(state, timing), _block_blobs(outcome))


def audit_due(state: State, implementation_id: str) -> bool:
    """Whether it was submitted and not judged, or must be judged again after a fork."""
    if implementation_id in state.stale:
        return ROOT not in state.stale and state.status != "stopped"
    action = state.implementations[implementation_id].action
    return action is not None and action in state.open_actions


def _audit_event(
    state: State, implementation: str, action: str | None, outcome: AuditOutcome
) -> tuple[AuditCompleted, tuple[bytes, ...]]:
    verified = outcome.verdict is found.Correctness.VERIFIED
    compared = verified and implementation != ROOT
    judged = _judged(state, implementation, outcome) if compared else (None, None)
    log = (outcome.log,) if outcome.log else ()
    event = AuditCompleted(
        action=action,
        implementation=implementation,
        verdict=_verdict(outcome.verdict),
        evidence=outcome.evidence,
        cases={check.name: check.cases for check in outcome.checks},
        failures={check.name: check.evidence for check in outcome.checks if not check.passed},
        latencies_s=dict(outcome.latencies_s) if verified else {},
        performance=judged[0],
        measurement=judged[1],
        sessions=_sessions(state, outcome) if compared else (),
        resources=dict(sorted(outcome.resources.items())),
        artifact=outcome.artifact_digest,
        log=digest_of(outcome.log) if outcome.log else None,
        environment=state.environment_digest,
        build_s=outcome.build_s,
        check_s=outcome.check_s,
        timing_s=outcome.timing_s,
    )
    return event, (*_block_blobs(outcome), *log)


def _verdict(verdict: found.Verdict) -> Correctness | Infrastructure:
    if isinstance(verdict, found.Correctness):
        return Correctness(verdict.value)
    return Infrastructure(verdict.value)


def _block_blobs(outcome: AuditOutcome | TimingOutcome) -> tuple[bytes, ...]:
    return tuple(blocks.to_bytes() for blocks in (outcome.screen, outcome.confirmation) if blocks is not None)


# --- who won -------------------------------------------------------------------------------------------------------


def _judged(
    state: State, implementation: str, outcome: AuditOutcome | TimingOutcome
) -> tuple[Performance, Measurement]:
    return judge(
        state.specified().contract,
        incumbent=outcome.incumbent or ROOT,
        blocks=_block_blobs(outcome),
        confirmed=outcome.confirmation is not None,
        confirmation=state.confirmations + 1,
        seed=bootstrap_seed(state.specified().policy.seed, implementation),
    )


def bootstrap_seed(seed: int, implementation: str) -> int:
    """The seed of a decision's bootstrap: from the campaign's seed and the implementation, nothing else."""
    return int(digest_of(f"{seed}/auditor/{implementation}".encode())[:8], 16)


def judge(
    contract: Contract, *, incumbent: str, blocks: Sequence[bytes], confirmed: bool, confirmation: int, seed: int
) -> tuple[Performance, Measurement]:
    """What stored blocks say about a candidate: the same answer for whoever reads them, on any machine.

    `blocks` are the screen's and, if `confirmed`, the confirmation's; without a confirmation nothing is won.
    """
    weights = {workload.name: workload.weight for workload in contract.workloads}
    last = Blocks.from_bytes(blocks[-1])
    digests = tuple(digest_of(item) for item in blocks)
    if not confirmed:
        return Performance.NO_GAIN, _screened(last, weights, incumbent, digests)
    limits = {workload.name: workload.limit_ratio for workload in contract.workloads}
    alpha = decider.confirmation_alpha(confirmation)
    decision = statistics.decide(last, weights, limits, alpha, seed)
    measurement = Measurement(
        incumbent=incumbent,
        ratio=decision.ratio,
        upper_bound_ratio=max(decision.upper_bound_ratio, decision.bootstrap_upper_ratio),
        delta_ratio=decision.delta_ratio,
        standard_error_ratio=decision.standard_error_ratio,
        alpha=alpha,
        confirmation=confirmation,
        speedup_ratio=decision.speedup_ratio,
        incumbent_ratios=dict(statistics.workload_ratios(last)),
        root_ratios={bound.workload: bound.ratio for bound in decision.limits},
        root_upper_bound_ratios={bound.workload: bound.upper_bound_ratio for bound in decision.limits},
        objective_s=decision.objective_s[found.CANDIDATE],
        blocks=digests,
    )
    return Performance(decision.performance.value), measurement


def _sessions(state: State, outcome: AuditOutcome | TimingOutcome) -> tuple[Session, ...]:
    return sessions_of(state.specified().contract, _block_blobs(outcome))


def sessions_of(contract: Contract, blocks: Sequence[bytes]) -> tuple[Session, ...]:
    """Each session in figures, from its stored blocks."""
    weights = {workload.name: workload.weight for workload in contract.workloads}
    return tuple(_session(Blocks.from_bytes(stored), weights) for stored in blocks)


def _session(blocks: Blocks, weights: Mapping[str, float]) -> Session:
    screened = statistics.screened(blocks, weights) if found.CANDIDATE in blocks.arms else None
    return Session(
        ratio=None if screened is None else screened.ratio,
        standard_error_ratio=None if screened is None else screened.standard_error_ratio,
        floors_ns=int(blocks.floor_ns.sum(dtype="uint64")),
        totals_ns=dict(blocks.totals_ns),
    )


def confirmation_due(contract: Contract, screen: bytes) -> bool:
    """Whether a screen's stored blocks leave a gain open, so that a confirmation has to follow."""
    weights = {workload.name: workload.weight for workload in contract.workloads}
    return statistics.screen(Blocks.from_bytes(screen), weights)


def _screened(blocks: Blocks, weights: Mapping[str, float], incumbent: str, digests: tuple[str, ...]) -> Measurement:
    screened = statistics.screened(blocks, weights)
    return Measurement(
        incumbent=incumbent,
        ratio=screened.ratio,
        upper_bound_ratio=screened.upper_bound_ratio,
        delta_ratio=statistics.LEAST_DELTA_RATIO,
        standard_error_ratio=screened.standard_error_ratio,
        objective_s=statistics.objective_s(blocks, weights, found.CANDIDATE),
        incumbent_ratios=dict(statistics.workload_ratios(blocks)),
        blocks=digests,
    )


# --- events back into findings (for replay) ------------------------------------------------------------------------


def outcome_of(event: AuditCompleted, read_blob: Callable[[str], bytes]) -> AuditOutcome:
    """The finding that led to this event, from the log alone."""
    screen, confirmation = _stored_blocks(event.measurement, read_blob)
    return AuditOutcome(
        verdict=_found_verdict(event.verdict),
        evidence=event.evidence,
        checks=tuple(found.CheckResult(item.name, item.passed, item.cases, item.evidence) for item in event.checks),
        screen=screen,
        confirmation=confirmation,
        incumbent=event.measurement.incumbent if event.measurement else None,
        latencies_s=event.latencies_s,
        resources=event.resources,
        artifact_digest=event.artifact,
        log=read_blob(event.log) if event.log else b"",
        build_s=event.build_s,
        check_s=event.check_s,
        timing_s=event.timing_s,
    )


def qualification_of(root: AuditOutcome, qualified: RootQualified, read_blob: Callable[[str], bytes]) -> Qualification:
    """The root's qualification, from its audit and the event that opened the search."""
    blocks = [Blocks.from_bytes(read_blob(digest)) for digest in qualified.blocks]
    shown = {item.name: item.latencies_s for item in qualified.baselines}
    first, last = (blocks[0] if len(blocks) > 1 else None), (blocks[-1] if blocks else None)
    return Qualification(replace(root, screen=first, confirmation=last), shown)


def timing_of(event: TimingCompleted, read_blob: Callable[[str], bytes]) -> TimingOutcome:
    """The repeated timing that led to this event, from the log alone."""
    screen, confirmation = _stored_blocks(event.measurement, read_blob)
    return TimingOutcome(
        verdict=found.Correctness.VERIFIED if event.measurement else found.Correctness.CRASHED,
        evidence=event.evidence,
        screen=screen,
        confirmation=confirmation,
        incumbent=event.measurement.incumbent if event.measurement else None,
        latencies_s=event.latencies_s,
        timing_s=event.elapsed_s,
    )


def _found_verdict(verdict: Correctness | Infrastructure) -> found.Verdict:
    if isinstance(verdict, Correctness):
        return found.Correctness(verdict.value)
    return found.Infrastructure(verdict.value)


def _stored_blocks(
    measurement: Measurement | None, read_blob: Callable[[str], bytes]
) -> tuple[Blocks | None, Blocks | None]:
    if measurement is None:
        return None, None
    blocks = [Blocks.from_bytes(read_blob(digest)) for digest in measurement.blocks]
    if measurement.confirmation is None:
        return (blocks[0] if blocks else None), None
    return (blocks[0] if len(blocks) > 1 else None), blocks[-1]


def environment_of(harness_environment: object) -> Environment:
    """The harness's description of this machine as the log keeps it."""
    return Environment.model_validate(harness_environment, from_attributes=True)
