"""Two campaigns side by side: what was asked differently, what came of it, and where they parted."""

from collections.abc import Iterator

from kernelbraid.events.decider import specification_changes
from kernelbraid.events.event import Value
from kernelbraid.events.state import State
from kernelbraid.events.values import Change
from kernelbraid.projections.lineage import Lineage
from kernelbraid.projections.summary import CampaignSummary, ForkOrigin, PromotionSummary, summary


class Side(Value):
    """One of the two: its summary, and what it promoted after they parted."""

    summary: CampaignSummary
    own_promotions: tuple[PromotionSummary, ...]


class Comparison(Value):
    """Left and right, and what tells them apart.

    `common` is the last event both have in their logs, None when neither derives from the other's history.
    `comparable` says whether latencies of the two may be set against each other: one contract, one environment.
    `best_ratio` is left's best over right's, above 1 when the right one is faster; None unless comparable.
    """

    left: Side
    right: Side
    common: ForkOrigin | None
    differences: tuple[Change, ...]
    """Keys of the specification, left as `before` and right as `after`."""
    same_environment: bool
    comparable: bool
    best_ratio: float | None


def compare(left: State, right: State, left_lineage: Lineage, right_lineage: Lineage) -> Comparison:
    """Set two opened campaigns side by side; nobody is asked whether they are driven, so none counts as interrupted."""
    common = common_ancestor(_segments(left, left_lineage), _segments(right, right_lineage))
    shared = 0 if common is None else common.position
    same_environment = left.environment_digest == right.environment_digest
    comparable = same_environment and left.specified().contract == right.specified().contract
    return Comparison(
        left=_side(left, shared),
        right=_side(right, shared),
        common=common,
        differences=specification_changes(left.specified(), right.specified()),
        same_environment=same_environment,
        comparable=comparable,
        best_ratio=_best_ratio(left, right) if comparable else None,
    )


def _side(state: State, shared: int) -> Side:
    view = summary(state, driven=True)
    own = tuple(promotion for promotion in view.promotions if promotion.position > shared)
    return Side(summary=view, own_promotions=own)


def _best_ratio(left: State, right: State) -> float | None:
    if left.best_objective_s is None or right.best_objective_s is None:
        return None
    return left.best_objective_s / right.best_objective_s


Segment = tuple[str, int]
"""A stretch of a campaign's log: whose events they are, and the position of the last."""


def _segments(state: State, view: Lineage) -> tuple[Segment, ...]:
    return (*view.forks, (state.campaign, state.position))


def common_ancestor(left: tuple[Segment, ...], right: tuple[Segment, ...]) -> ForkOrigin | None:
    """The last event that two logs share, each given as its stretches from the first ancestor on."""
    shared = list(_shared(left, right))
    return ForkOrigin(campaign=shared[-1][0], position=shared[-1][1]) if shared else None


def _shared(left: tuple[Segment, ...], right: tuple[Segment, ...]) -> Iterator[Segment]:
    for (campaign, last), (other, other_last) in zip(left, right, strict=False):
        if campaign != other:
            return
        yield campaign, min(last, other_last)
        if last != other_last:
            return
