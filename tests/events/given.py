"""given(events).when(verb, ...).then(events), .then_types(types) or .then_refused(rule), and small events to tell."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import CampaignOpened, RootQualified
from kernelbraid.events.decider import confirmation_alpha
from kernelbraid.events.errors import RuleBroken
from kernelbraid.events.event import Actor, Event, Recorded
from kernelbraid.events.search import ActionProposed, ImplementationSubmitted, OpportunityRaised
from kernelbraid.events.state import State, fold
from kernelbraid.events.values import (
    ROOT,
    Contract,
    Correctness,
    Digests,
    Environment,
    Infrastructure,
    Measurement,
    Performance,
    Policy,
    Region,
    Scope,
    SourceFile,
    Specification,
    Workload,
    environment_digest,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Told:
    """An event with who recorded it and how many seconds after the one before."""

    event: Event
    actor: Actor = "driver"
    after_s: float = 1.0


def told(event: Event, actor: Actor = "driver", after_s: float = 1.0) -> Told:
    """The event, recorded by this actor, this many seconds after the one before."""
    return Told(event, actor, after_s)


def recorded(story: Iterable[Event | Told], campaign: str = "c", after: Recorded | None = None) -> list[Recorded]:
    """The story as a log that goes on after the given event."""
    log: list[Recorded] = []
    at, position = (after.recorded_at, after.position) if after else (START, 0)
    for item in story:
        line = item if isinstance(item, Told) else Told(item)
        at, position = at + timedelta(seconds=line.after_s), position + 1
        log.append(Recorded(campaign, position, at, line.actor, 0, (0, 1), line.event))
    return log


@dataclass(frozen=True)
class Outcome:
    """What a verb did at a state: the events it returned, or the rule it would have broken."""

    state: State
    events: tuple[Event, ...] | None
    rule: str

    def then(self, *events: Event) -> "Outcome":
        """It returned exactly these events."""
        assert self.events is not None, f"refused: {self.rule}"
        assert self.events == events
        return self

    def then_types(self, *types: type[Event]) -> "Outcome":
        """It returned events of exactly these types."""
        assert self.events is not None, f"refused: {self.rule}"
        assert tuple(type(event) for event in self.events) == types
        return self

    def then_refused(self, words: str) -> None:
        """It was refused, in words that include these."""
        assert self.events is None, f"allowed: {self.events}"
        assert words in self.rule


@dataclass(frozen=True)
class Given:
    """A history."""

    log: tuple[Recorded, ...]

    @property
    def state(self) -> State:
        """What it amounts to."""
        return fold(self.log)

    def when(self, verb: Callable[..., tuple[Event, ...]], *wanted: Any, **options: Any) -> Outcome:
        """Ask the decider for a decision at this state."""
        state = self.state
        try:
            return Outcome(state, verb(state, *wanted, **options), "")
        except RuleBroken as broken:
            return Outcome(state, None, str(broken))

    def and_then(self, *story: Event | Told | tuple[Event, ...], campaign: str = "c") -> "Given":
        """The history with more events; a tuple of events is one append."""
        more = recorded(_flat(story), campaign, self.log[-1] if self.log else None)
        return replace(self, log=(*self.log, *more))

    def decided(self, verb: Callable[..., tuple[Event, ...]], *wanted: Any, **options: Any) -> "Given":
        """The history with what the decider returns here, which must be allowed."""
        return self.and_then(verb(self.state, *wanted, **options))


def given(*story: Event | Told | tuple[Event, ...]) -> Given:
    """A history from its first event on."""
    return Given(()).and_then(*story)


def _flat(story: Iterable[Event | Told | tuple[Event, ...]]) -> Iterable[Event | Told]:
    for item in story:
        if isinstance(item, tuple):
            yield from one_append(item)
        else:
            yield item


def one_append(events: Iterable[Event]) -> Iterable[Told]:
    """The events as one append stores them: at one moment."""
    return (Told(event, after_s=0.0 if ordinal else 1.0) for ordinal, event in enumerate(events))


# --- a small campaign ----------------------------------------------------------------------------------------------

ENVIRONMENT = Environment(
    machine="x86_64",
    cpu_model="a cpu",
    simd_bits=256,
    l1_bytes=32768,
    compiler="gcc",
    compiler_version="13",
    flags=("-O3",),
    kernel_release="6.1",
    sandbox="bubblewrap",
    harness_digest="h",
    toolchain_digest="t",
)
ELSEWHERE = ENVIRONMENT.model_copy(update={"cpu_model": "another cpu"})
HERE = environment_digest(ENVIRONMENT)
DIGESTS = Digests(catalogue="c", templates="t", agents="a")
WORKLOADS = (
    Workload(name="prefill", entry="full", path="full", dtype="f32", dims={"n": 64}, weight=1.0, limit_ratio=1.1),
    Workload(name="decode", entry="decode", path="decode", dtype="f32", dims={"n": 64}, weight=2.0, limit_ratio=1.2),
)
LIMITS = {workload.name: workload.limit_ratio for workload in WORKLOADS}
LATENCIES_S = {workload.name: 0.001 for workload in WORKLOADS}
CASES = {"agreement": 3}
FAILED_CHECKS = {"agreement": "row 7 differs"}


def specification(**policy: Any) -> Specification:
    """A specification with these policy keys."""
    contract = Contract(
        operator="attention",
        target="cpu",
        workloads=WORKLOADS,
        numerical_contract={"exp": "any"},
        declaration_digest="d",
        harness_digest="h",
        toolchain_digest="t",
    )
    return Specification(contract=contract, policy=Policy(**policy))


def other_contract(**policy: Any) -> Specification:
    """The same with another numerical contract."""
    before = specification(**policy)
    return Specification(
        contract=before.contract.model_copy(update={"numerical_contract": {"exp": "cubic"}}), policy=before.policy
    )


def sources(text: str) -> tuple[SourceFile, ...]:
    """One file whose digest is the text."""
    return (SourceFile(name="kernel.c", digest=text),)


def regions(full: str = "r", decode: str = "r", shared: str = "r") -> tuple[Region, ...]:
    """A region of each path and one of both, by the digests of their texts."""
    return (
        Region(name="full_loop", paths=("full",), digest=full),
        Region(name="decode_loop", paths=("decode",), digest=decode),
        Region(name="load", paths=("full", "decode"), digest=shared),
    )


def opened(**policy: Any) -> CampaignOpened:
    """The first event."""
    return CampaignOpened(
        specification=specification(**policy),
        environment=ENVIRONMENT,
        digests=DIGESTS,
        sources=sources("root"),
        regions=regions(),
    )


def root_audit(verdict: Correctness | Infrastructure = Correctness.VERIFIED, here: str = HERE) -> AuditCompleted:
    """The root's audit with this verdict."""
    verified = verdict is Correctness.VERIFIED
    return AuditCompleted(
        action=None,
        implementation=ROOT,
        verdict=verdict,
        evidence="",
        cases=CASES,
        failures={} if verified else FAILED_CHECKS,
        latencies_s=LATENCIES_S if verified else {},
        environment=here,
        build_s=0.25,
        check_s=0.25,
        timing_s=0.5,
    )


def qualified() -> RootQualified:
    """The root's qualification: an objective of 0.001 x 1 + 0.001 x 2 seconds."""
    return RootQualified(latencies_s=LATENCIES_S, objective_s=0.003)


def search(**policy: Any) -> Given:
    """A campaign whose root has just qualified."""
    return given(opened(**policy), root_audit(), qualified())


# --- one step of a search ------------------------------------------------------------------------------------------


def raised(opportunity: str, *parents: str, mechanism: str = "tile", scope: Scope = "joint") -> OpportunityRaised:
    """An opportunity on these parents, the root unless told."""
    return OpportunityRaised(
        opportunity=opportunity,
        mechanisms=(mechanism,),
        parents=parents or (ROOT,),
        scope=scope,
        workloads=(),
        evidence="",
        rationale="",
        expected_gain_ratio=1.1,
    )


def proposed(
    action: str, opportunity: str, *parents: str, ancestor: str | None = None, scope: Scope = "joint"
) -> ActionProposed:
    """An action on these parents, the root unless told."""
    return ActionProposed(
        action=action,
        opportunity=opportunity,
        parents=parents or (ROOT,),
        ancestor=ancestor,
        scope=scope,
        rationale="",
        numerical_risks="",
        falsification="",
        strategy="test",
    )


def submitted(
    action: str, implementation: str, text: tuple[Region, ...] | None = None, mechanisms: tuple[str, ...] = ("tile",)
) -> ImplementationSubmitted:
    """An offspring of the action with these regions."""
    return ImplementationSubmitted(
        action=action,
        implementation=implementation,
        sources=sources(implementation),
        regions=regions(implementation, implementation, implementation) if text is None else text,
        mechanisms=mechanisms,
        contract_items=(),
    )


def tried(number: int, *parents: str, mechanism: str = "tile") -> tuple[Event, ...]:
    """Opportunity, action and implementation of this number: everything up to the audit."""
    opportunity, action, implementation = f"o{number:04d}", f"a{number:04d}", f"i{number:04d}"
    return (
        raised(opportunity, *parents, mechanism=mechanism),
        proposed(action, opportunity, *parents),
        submitted(action, implementation, mechanisms=(mechanism,)),
    )


# --- measurements --------------------------------------------------------------------------------------------------


def slowed(ratio: float = 1.0, upper: float | None = None, workloads: Iterable[str] = LIMITS) -> dict[str, Any]:
    """Fields of a measurement: these workloads at this slowdown against the root."""
    names = tuple(workloads)
    bounds = dict.fromkeys(names, ratio + 0.01 if upper is None else upper)
    return {"root_ratios": dict.fromkeys(names, ratio), "root_upper_bound_ratios": bounds}


def measured(k: int | None, incumbent: str = ROOT, **changes: Any) -> Measurement:
    """A clear win (3 %) as the k-th confirmation, or a screen without one (k None), with these fields changed."""
    won = {
        "incumbent": incumbent,
        "ratio": 0.97,
        "upper_bound_ratio": 0.98,
        "delta_ratio": 0.006,
        "standard_error_ratio": 0.001,
        "alpha": None if k is None else confirmation_alpha(k),
        "confirmation": k,
        "speedup_ratio": None if k is None else 1.03,
        "objective_s": 0.0029,
    }
    return Measurement.model_validate(won | ({} if k is None else slowed()) | changes)


def audited(
    implementation: str,
    action: str | None,
    performance: Performance = Performance.NO_GAIN,
    measurement: Measurement | None = None,
    **changes: Any,
) -> AuditCompleted:
    """A verified offspring's audit; without a measurement its screen ruled a gain out."""
    return AuditCompleted.model_validate(
        {
            "action": action,
            "implementation": implementation,
            "verdict": Correctness.VERIFIED,
            "evidence": "",
            "cases": CASES,
            "latencies_s": LATENCIES_S,
            "performance": performance,
            "measurement": measurement or measured(None),
            "environment": HERE,
            "build_s": 0.25,
            "check_s": 0.25,
            "timing_s": 0.5,
        }
        | changes
    )


def failing(
    implementation: str, action: str | None, verdict: Correctness | Infrastructure = Correctness.DISAGREEMENT
) -> AuditCompleted:
    """An audit that did not verify."""
    return AuditCompleted(
        action=action,
        implementation=implementation,
        verdict=verdict,
        evidence="",
        cases=CASES,
        failures=FAILED_CHECKS,
        environment=HERE,
        build_s=0.25,
        check_s=0.25,
        timing_s=0.5,
    )


def won(implementation: str, action: str | None, k: int, incumbent: str = ROOT) -> AuditCompleted:
    """An audit that found a clear win over the incumbent."""
    return audited(implementation, action, Performance.PROMOTABLE, measured(k, incumbent))


def timed(
    implementation: str,
    performance: Performance = Performance.NO_GAIN,
    measurement: Measurement | None = None,
) -> TimingCompleted:
    """A winner that was timed again."""
    return TimingCompleted(
        implementation=implementation,
        latencies_s=LATENCIES_S,
        performance=performance,
        measurement=measurement or measured(None),
        environment=HERE,
        elapsed_s=1.0,
    )


def promoted(implementation: str, replaces: str = ROOT) -> ImplementationPromoted:
    """The promotion that follows from `measured`."""
    return ImplementationPromoted(
        implementation=implementation, replaces=replaces, objective_s=0.0029, gain_ratio=1 / 0.97, speedup_ratio=1.03
    )
