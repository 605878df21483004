"""What `show C` says of a campaign. The JSON of CampaignSummary is a stable interface, kept by a golden file."""

from collections import Counter
from typing import Literal

from kernelbraid.events.event import Value
from kernelbraid.events.state import Implementation, State, Status, objective_s
from kernelbraid.events.values import ROOT, Baseline
from kernelbraid.projections.digest import state_digest
from kernelbraid.projections.stopping import stopping

ShownStatus = Literal["running", "paused", "interrupted", "stopped"]


class RootSummary(Value):
    """The root and its weighted latency in seconds, None until it qualified."""

    implementation: str
    objective_s: float | None


class BestSummary(Value):
    """The best implementation; `speedup_ratio` is root over best in its last confirmation's own blocks."""

    implementation: str
    objective_s: float
    speedup_ratio: float
    mechanisms: tuple[str, ...]
    parents: tuple[str, ...]


class Counts(Value):
    """Implementations by outcome, the root included; `promoted` counts promotions of offspring."""

    audited: int
    verified: int
    promoted: int
    failed: int


class OpportunityCounts(Value):
    """Opportunities by what became of them."""

    pending: int
    consumed: int
    withdrawn: int


class BudgetSummary(Value):
    """A budget in the unit its key names; `limit` and `left` are None when it is not set."""

    limit: int | float | None
    spent: int | float
    reserved: int | float
    left: int | float | None
    inherited: int | float


class ForkOrigin(Value):
    """The campaign and the position that this one continues."""

    campaign: str
    position: int


class BaselineSummary(Value):
    """A build timed beside the root: its weighted latency, and how much the root and the best compare with it.

    `root_ratio` is root over baseline; `best_ratio` is baseline over best, above 1 when the best is faster.
    """

    name: str
    objective_s: float
    root_ratio: float
    best_ratio: float


class PromotionSummary(Value):
    """One promotion: what was promoted where, out of what.

    `parents_promoted` says of each parent whether it was ever the best; `gain_ratio` is old best over new one.
    """

    implementation: str
    position: int
    parents: tuple[str, ...]
    parents_promoted: tuple[bool, ...]
    mechanisms: tuple[str, ...]
    gain_ratio: float
    speedup_ratio: float | None


class CampaignSummary(Value):
    """A campaign at one position."""

    campaign: str
    operator: str
    target: str
    status: ShownStatus
    stop_reason: str | None
    pause_reason: str | None
    position: int
    digest: str
    kappa: int
    kappa_threshold: int
    root: RootSummary
    best: BestSummary | None
    counts: Counts
    frontier: tuple[str, ...]
    archive: tuple[str, ...]
    merge_list: tuple[str, ...]
    in_flight: tuple[str, ...]
    opportunities: OpportunityCounts
    budgets: dict[str, BudgetSummary]
    forked_from: ForkOrigin | None
    baselines: tuple[BaselineSummary, ...]
    promotions: tuple[PromotionSummary, ...]


def summary(state: State, *, driven: bool) -> CampaignSummary:
    """Summarise an opened campaign; `driven` says whether somebody holds its driver lease now."""
    contract, rule = state.specified().contract, stopping(state)
    return CampaignSummary(
        campaign=state.campaign,
        operator=contract.operator,
        target=contract.target,
        status=shown_status(state.status, driven),
        stop_reason=state.stop_reason,
        pause_reason=state.pause_reason or None,
        position=state.position,
        digest=state_digest(state),
        kappa=rule.kappa,
        kappa_threshold=rule.kappa_threshold,
        root=RootSummary(implementation=ROOT, objective_s=state.root_objective_s),
        best=_best(state),
        counts=Counts(
            audited=state.audited_count,
            verified=state.verified_count,
            promoted=state.promoted_count,
            failed=state.failed_count,
        ),
        frontier=tuple(state.frontier),
        archive=tuple(state.archive),
        merge_list=tuple(state.merge_list),
        in_flight=tuple(state.open_actions),
        opportunities=_opportunities(state),
        budgets=_budgets(state),
        forked_from=_origin(state),
        baselines=tuple(_baseline(state, baseline) for baseline in state.baselines),
        promotions=promotions(state),
    )


def shown_status(status: Status, driven: bool) -> ShownStatus:
    """The status a person sees: a search that should be running and that nobody drives was interrupted."""
    if status == "paused" or status == "stopped":
        return status
    return "running" if driven else "interrupted"


def promotions(state: State) -> tuple[PromotionSummary, ...]:
    """Every offspring that was ever the best, in the order it became so."""
    promoted = (node for node in state.implementations.values() if node.promoted and node.id != ROOT)
    return tuple(_promotion(state, node) for node in sorted(promoted, key=lambda node: node.promoted_at))


def _promotion(state: State, node: Implementation) -> PromotionSummary:
    measurement = node.measurement
    return PromotionSummary(
        implementation=node.id,
        position=node.promoted_at,
        parents=node.parents,
        parents_promoted=tuple(state.implementations[parent].promoted for parent in node.parents),
        mechanisms=node.mechanisms,
        gain_ratio=1.0 if measurement is None else 1 / measurement.ratio,
        speedup_ratio=None if measurement is None else measurement.speedup_ratio,
    )


def _best(state: State) -> BestSummary | None:
    if state.best is None or state.best_objective_s is None:
        return None
    node = state.implementations[state.best]
    return BestSummary(
        implementation=node.id,
        objective_s=state.best_objective_s,
        speedup_ratio=state.speedup_ratio,
        mechanisms=node.mechanisms,
        parents=node.parents,
    )


def _opportunities(state: State) -> OpportunityCounts:
    by_status = Counter(opportunity.status for opportunity in state.opportunities.values())
    return OpportunityCounts(
        pending=by_status["pending"], consumed=by_status["consumed"], withdrawn=by_status["withdrawn"]
    )


def _budgets(state: State) -> dict[str, BudgetSummary]:
    return {
        budget.name: BudgetSummary(
            limit=budget.limit,
            spent=budget.spent,
            reserved=budget.reserved,
            left=budget.left,
            inherited=budget.inherited,
        )
        for budget in stopping(state).budgets
    }


def _origin(state: State) -> ForkOrigin | None:
    if state.forked_from is None:
        return None
    campaign, position = state.forked_from
    return ForkOrigin(campaign=campaign, position=position)


def _baseline(state: State, baseline: Baseline) -> BaselineSummary:
    objective = objective_s(state.specified(), baseline.latencies_s)
    root = state.root_objective_s or objective
    root_ratio = root / objective
    return BaselineSummary(
        name=baseline.name,
        objective_s=objective,
        root_ratio=root_ratio,
        best_ratio=state.speedup_ratio / root_ratio,
    )
