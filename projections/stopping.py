"""How near a campaign is to its end: kappa, edits failing in a row, and every budget. Read from the decider's state."""

from dataclasses import dataclass

from kernelbraid.events.decider import budget_spent, due_stop
from kernelbraid.events.state import Spent, State
from kernelbraid.events.values import Policy, StopReason


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget. `limit` and `left` are None when it is not set; `inherited` is what a fork's origins had spent.

    `reserved` is what calls under way may still use. The unit is in the name: audits and tokens are counts.
    """

    name: str
    limit: float | None
    spent: float
    reserved: float
    left: float | None
    inherited: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """Frozen view of the stopping rule. `due` is the reason to stop now, `spent_budget` the budget with no room."""

    kappa: int
    kappa_threshold: int
    edits_failing: int
    edits_failing_threshold: int
    budgets: tuple[Budget, ...]
    due: StopReason | None
    spent_budget: str | None
    stopped: StopReason | None


def stopping(state: State, elapsed_s: float = 0.0) -> Stopping:
    """The stopping rule's view of an opened campaign; `elapsed_s` is the driver's clock since the last event."""
    policy = state.specified().policy
    return Stopping(
        kappa=state.kappa,
        kappa_threshold=policy.kappa,
        edits_failing=state.consecutive_edit_failures,
        edits_failing_threshold=policy.edits_failing,
        budgets=_budgets(policy, state.spent, state.inherited or Spent(), elapsed_s),
        due=due_stop(state, elapsed_s),
        spent_budget=budget_spent(state, elapsed_s),
        stopped=state.stop_reason,
    )


def _budgets(policy: Policy, spent: Spent, inherited: Spent, elapsed_s: float) -> tuple[Budget, ...]:
    return (
        _budget("audits", policy.audits, spent.audits, 0, inherited.audits),
        _budget("tokens", policy.tokens, spent.tokens, spent.reserved_tokens, inherited.tokens),
        _budget("cost_usd", policy.cost_usd, spent.cost_usd, spent.reserved_usd, inherited.cost_usd),
        _budget("wall_s", policy.wall_s, spent.active_s + elapsed_s, 0.0, inherited.active_s),
    )


def _budget(name: str, limit: float | None, spent: float, reserved: float, inherited: float) -> Budget:
    left = None if limit is None else max(0, limit - spent - reserved)
    return Budget(name, limit, spent, reserved, left, inherited)
