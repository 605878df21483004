"""Metrics that describe the log, as a pure fold: replaying a log gives exactly the same samples.

Metrics of a process (append latency, lock wait, lag) are not here; they are no part of what happened.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.registry import BY_NAME, EVENT_TYPES
from kernelbraid.events.state import State
from kernelbraid.events.values import Correctness, Infrastructure, Performance
from kernelbraid.projections.ledger import LedgerFold, Spending, ledger
from kernelbraid.projections.projection import Handler, Projection
from kernelbraid.projections.stopping import stopping

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]

AUDIT_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One number; `name` is the family's, with a suffix for parts of a histogram."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one metric with its help and kind, as the Prometheus text format groups them."""

    name: str
    help: str
    kind: Kind
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class MetricsFold:
    """The accumulator: counts that no other projection keeps."""

    events: Counter[type[Event]] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    audit_buckets: list[int] = field(default_factory=lambda: [0] * (len(AUDIT_BOUNDS_S) + 1))
    audit_s: float = 0.0


def metrics(state: State, folded: MetricsFold, spent: LedgerFold) -> tuple[Family, ...]:
    """Every family at the state's position, for an opened campaign; the three folds are of the same events.

    Counters cover the whole log that is read, in a fork its origins' part included, but tokens, cost and budgets are
    the campaign's own. Label values are closed sets, agents and models.
    """
    return (
        *_counted(folded),
        *_search(state),
        *_spending(ledger(spent).own),
        *_budgets(state),
        _audit_seconds(folded),
    )


def _counted(folded: MetricsFold) -> Iterable[Family]:
    events = {name: folded.events[kind] for name, kind in BY_NAME.items()}
    verdicts = {verdict.value: folded.verdicts[verdict] for verdict in (*Correctness, *Infrastructure)}
    results = {result.value: folded.results[result] for result in Performance}
    yield _labelled("events_total", "Events of the log.", "counter", "type", events)
    yield _labelled("audits_total", "Completed audits by verdict.", "counter", "verdict", verdicts)
    yield _labelled("performance_total", "Performance results of audits and timings.", "counter", "result", results)


def _search(state: State) -> Iterable[Family]:
    rule = stopping(state)
    yield _single("promotions_total", "Promotions of offspring.", "counter", state.promoted_count)
    yield _single("implementations_total", "Implementations in the lineage.", "counter", len(state.implementations))
    yield _single("kappa", "Audited offspring in a row that did not improve the best.", "gauge", rule.kappa)
    yield _single("kappa_threshold", "Where kappa stops the search.", "gauge", rule.kappa_threshold)
    yield _single("edits_failing", "Edits that failed in a row.", "gauge", rule.edits_failing)
    yield _single("root_objective_seconds", "Weighted latency of the root.", "gauge", state.root_objective_s)
    yield _single("best_objective_seconds", "Weighted latency of the best.", "gauge", state.best_objective_s)
    yield _single("speedup_ratio", "Root over best, in the last confirmation's blocks.", "gauge", state.speedup_ratio)
    yield _single("frontier_size", "Active verified implementations.", "gauge", len(state.frontier))
    yield _single("archive_size", "Verified implementations set aside.", "gauge", len(state.archive))
    yield _single("pending_opportunities", "Opportunities waiting for an action.", "gauge", len(state.pending))
    yield _single("merge_list_size", "Implementations that wait to be merged.", "gauge", len(state.merge_list))
    yield _single("in_flight", "Actions that are not audited yet.", "gauge", state.in_flight)
    yield _single("position", "Position of the last event.", "gauge", state.position)
    statuses = {status: int(state.status == status) for status in ("opening", "running", "paused", "stopped")}
    yield _labelled("status", "1 for the campaign's status.", "gauge", "status", statuses)


def _spending(spent: Spending) -> Iterable[Family]:
    by_use = [((("agent", use.agent), ("model", use.model)), use) for use in spent.models]
    tokens = [
        ((*labels, ("direction", direction)), count)
        for labels, use in by_use
        for direction, count in (("input", use.input_tokens), ("output", use.output_tokens))
    ]
    yield _family("model_calls_total", "Model calls.", "counter", [(labels, use.calls) for labels, use in by_use])
    yield _family("tokens_total", "Tokens.", "counter", tokens)
    yield _family("cost_usd_total", "Money.", "counter", [(labels, use.cost_usd) for labels, use in by_use])
    seconds = [(labels, use.elapsed_s) for labels, use in by_use]
    yield _family("model_seconds_total", "Time spent waiting for models.", "counter", seconds)


def _budgets(state: State) -> Iterable[Family]:
    budgets = stopping(state).budgets
    spent = {budget.name: budget.spent for budget in budgets}
    limits = {budget.name: budget.limit for budget in budgets if budget.limit is not None}
    left = {budget.name: budget.left for budget in budgets if budget.left is not None}
    yield _labelled("budget_spent", "Spent, in the budget's own unit.", "gauge", "budget", spent)
    yield _labelled("budget_limit", "Limit of each budget that is set.", "gauge", "budget", limits)
    yield _labelled("budget_left", "Left of each budget that is set.", "gauge", "budget", left)


def _audit_seconds(folded: MetricsFold) -> Family:
    name = "kernelbraid_audit_seconds"
    bounds = (*(f"{bound:g}" for bound in AUDIT_BOUNDS_S), "+Inf")
    counts = list(accumulate(folded.audit_buckets))
    buckets = (Sample(f"{name}_bucket", (("le", bound),), count) for bound, count in zip(bounds, counts, strict=True))
    totals = (Sample(f"{name}_sum", (), folded.audit_s), Sample(f"{name}_count", (), counts[-1]))
    return Family(name, "How long audits took.", "histogram", (*buckets, *totals))


def _labelled(name: str, told: str, kind: Kind, label: str, values: Mapping[str, float]) -> Family:
    return _family(name, told, kind, [(((label, key),), value) for key, value in values.items()])


def _single(name: str, told: str, kind: Kind, value: float | None) -> Family:
    return _family(name, told, kind, [] if value is None else [((), value)])


def _family(name: str, told: str, kind: Kind, values: Iterable[tuple[Labels, float]]) -> Family:
    full = f"kernelbraid_{name}"
    return Family(full, told, kind, tuple(Sample(full, labels, value) for labels, value in values))


# --- the fold ------------------------------------------------------------------------------------------------------


def _count(folded: MetricsFold, recorded: Recorded) -> None:
    folded.events[type(recorded.event)] += 1


def _audited(folded: MetricsFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, AuditCompleted)
    elapsed_s = event.elapsed_s
    _count(folded, recorded)
    folded.verdicts[event.verdict] += 1
    folded.audit_buckets[bisect_left(AUDIT_BOUNDS_S, elapsed_s)] += 1
    folded.audit_s += elapsed_s
    if event.performance is not None:
        folded.results[event.performance] += 1


def _timed(folded: MetricsFold, recorded: Recorded) -> None:
    assert isinstance(recorded.event, TimingCompleted)
    _count(folded, recorded)
    folded.results[recorded.event.performance] += 1


_HANDLERS: dict[type[Event], Handler[MetricsFold]] = {
    **dict.fromkeys(EVENT_TYPES, _count),
    AuditCompleted: _audited,
    TimingCompleted: _timed,
}

METRICS: Projection[MetricsFold] = Projection("metrics", MetricsFold, _HANDLERS)
