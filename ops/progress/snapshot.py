"""Where a running search stands, small enough to copy at every event."""

from dataclasses import dataclass, field

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State
from kernelbraid.events.values import ROOT
from kernelbraid.ops.report.figures import plain
from kernelbraid.projections.timeline import entry

LINES_KEPT = 6


@dataclass(frozen=True, slots=True)
class Doing:
    """One action under way."""

    action: str
    stage: str
    what: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the live view shows; `wall_s` and the limits are None where no budget is set."""

    campaign: str = ""
    operator: str = ""
    position: int = 0
    status: str = "opening"
    doing: tuple[Doing, ...] = ()
    kappa: int = 0
    kappa_threshold: int = 1
    best: str | None = None
    speedup_ratio: float = 1.0
    audits: int = 0
    audits_limit: int | None = None
    active_s: float = 0.0
    wall_limit_s: float | None = None
    tokens: int = 0
    tokens_limit: int | None = None
    cost_usd: float = 0.0
    cost_limit_usd: float | None = None
    verified: int = 0
    failed: int = 0
    promoted: int = 0
    audited_here: int = 0
    """Audits since this process began to watch."""
    lines: tuple[str, ...] = field(default=())


def after(before: Snapshot, recorded: Recorded, state: State, told: bool) -> Snapshot:
    """The snapshot after an event; `told` keeps its line."""
    policy, spent = state.specified().policy, state.spent
    line = (f"{recorded.position:>5}  {plain(entry(recorded).what)}",) if told else ()
    return Snapshot(
        campaign=state.campaign,
        operator=state.specified().contract.operator,
        position=state.position,
        status=state.status,
        doing=_doing(state),
        kappa=state.kappa,
        kappa_threshold=policy.kappa,
        best=state.best,
        speedup_ratio=state.speedup_ratio,
        audits=spent.audits,
        audits_limit=policy.audits,
        active_s=spent.active_s,
        wall_limit_s=policy.wall_s,
        tokens=spent.tokens,
        tokens_limit=policy.tokens,
        cost_usd=spent.cost_usd,
        cost_limit_usd=policy.cost_usd,
        verified=state.verified_count,
        failed=state.failed_count,
        promoted=state.promoted_count,
        audited_here=before.audited_here + isinstance(recorded.event, AuditCompleted),
        lines=(*before.lines, *line)[-LINES_KEPT:],
    )


def _doing(state: State) -> tuple[Doing, ...]:
    if state.status == "opening" and state.stale:
        waiting = next(iter(state.stale))
        return (Doing(waiting, "qualifying" if waiting == ROOT else "auditing again", "with its baselines"),)
    doing = tuple(_action(state, action) for action in state.open_actions)
    return doing + tuple(Doing(item, "timing again", "the best changed meanwhile") for item in state.retimings)


def _action(state: State, name: str) -> Doing:
    action = state.actions[name]
    mechanisms = " + ".join(state.opportunities[action.opportunity].mechanisms)
    stage = "editing" if action.implementation is None else f"auditing {action.implementation}"
    return Doing(name, stage, f"{mechanisms} on {' + '.join(action.parents)}")
