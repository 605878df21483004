"""How fast everything is: latency by workload and implementation, the table of root against best, and baselines.

Latencies and verdicts are read from the decider's state; folded beside it is only what the state does not keep, the
agreement checks of whatever may become the best.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.state import Implementation, State, objective_s
from kernelbraid.events.values import ROOT, Baseline, Check, Correctness, EntryPath, Performance
from kernelbraid.projections.projection import Handler, Projection

AGREEMENT = "agreement"
"""How the checks of bitwise agreement between the paths begin their names."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Bitwise agreement of full-sequence and decode path: cases compared, and whether all of them held."""

    cases: int
    held: bool


@dataclass(slots=True)
class PerformanceFold:
    """The accumulator: the last agreement of each implementation that could be shown as root or best."""

    agreements: dict[str, Agreement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One workload: root and best in seconds a call, and root over best.

    The ratio comes from the best's last confirmation, in which root and best were timed in turn; root and best are
    each from their own audit, so their quotient differs from it by the noise between sessions. Best and ratio are
    None until the best was measured in this environment.
    """

    workload: str
    path: EntryPath
    weight: float
    root_s: float
    best_s: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A build timed beside the root: latencies by workload in seconds, and what root and best are against it.

    `root_ratio` is root over baseline, `best_ratio` baseline over best: above 1 when the best is faster.
    """

    name: str
    latencies_s: Mapping[str, float]
    objective_s: float
    root_ratio: float
    best_ratio: float


@dataclass(frozen=True, slots=True)
class PerformanceTable:
    """Frozen view. Objectives are weighted latencies in seconds; `ratio` is root over best, measured together."""

    best: str
    rows: tuple[WorkloadRow, ...]
    baselines: tuple[BaselineRow, ...]
    root_objective_s: float
    best_objective_s: float
    ratio: float
    agreement: Agreement | None
    """The best's."""
    root_agreement: Agreement | None


def performance_table(state: State, folded: PerformanceFold) -> PerformanceTable | None:
    """Root against best, workload by workload; None until the root qualified."""
    if state.root_objective_s is None or state.best is None or state.best_objective_s is None:
        return None
    return PerformanceTable(
        best=state.best,
        rows=_rows(state, state.implementations[state.best]),
        baselines=tuple(_baseline(state, baseline) for baseline in state.baselines),
        root_objective_s=state.root_objective_s,
        best_objective_s=state.best_objective_s,
        ratio=state.speedup_ratio,
        agreement=folded.agreements.get(state.best),
        root_agreement=folded.agreements.get(ROOT),
    )


def latencies_s(state: State) -> Mapping[str, Mapping[str, float]]:
    """Seconds a call of every measured implementation, by implementation and then by workload."""
    measured = (node for node in state.implementations.values() if node.latencies_s)
    return MappingProxyType({node.id: MappingProxyType(node.latencies_s) for node in measured})


def _rows(state: State, best: Implementation) -> tuple[WorkloadRow, ...]:
    root_s, best_s = state.root_latencies_s, best.latencies_s
    root_ratios = {} if best.measurement is None else best.measurement.root_ratios
    together = {workload: 1 / ratio for workload, ratio in root_ratios.items()}
    return tuple(
        WorkloadRow(
            workload=item.name,
            path=item.path,
            weight=item.weight,
            root_s=root_s[item.name],
            best_s=best_s.get(item.name),
            ratio=together.get(item.name) or _quotient(root_s[item.name], best_s.get(item.name)),
        )
        for item in state.specified().contract.workloads
    )


def _quotient(root_s: float, best_s: float | None) -> float | None:
    return None if best_s is None else root_s / best_s


def _baseline(state: State, baseline: Baseline) -> BaselineRow:
    objective = objective_s(state.specified(), baseline.latencies_s)
    root_ratio = (state.root_objective_s or objective) / objective
    return BaselineRow(
        name=baseline.name,
        latencies_s=MappingProxyType(baseline.latencies_s),
        objective_s=objective,
        root_ratio=root_ratio,
        best_ratio=state.speedup_ratio / root_ratio,
    )


def _audited(folded: PerformanceFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, AuditCompleted)
    presentable = event.performance is Performance.PROMOTABLE or event.implementation == ROOT
    if presentable and event.verdict is Correctness.VERIFIED:
        folded.agreements[event.implementation] = _agreement(event.checks)


def _agreement(checks: tuple[Check, ...]) -> Agreement:
    checks = tuple(check for check in checks if check.name.startswith(AGREEMENT))
    return Agreement(sum(check.cases for check in checks), bool(checks) and all(check.passed for check in checks))


_HANDLERS: dict[type[Event], Handler[PerformanceFold]] = {AuditCompleted: _audited}

PERFORMANCE: Projection[PerformanceFold] = Projection("performance", PerformanceFold, _HANDLERS)
