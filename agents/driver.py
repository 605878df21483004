"""The driver: runs round after round until the campaign stops, pauses, or is asked to."""

from collections.abc import Callable

from kernelbraid.agents import duty
from kernelbraid.agents.crew import Crew
from kernelbraid.events import decider
from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.event import Decision
from kernelbraid.events.state import State
from kernelbraid.events.values import Environment

PauseRequested = Callable[[], str | None]
"""Why to pause after the running audits, or None to go on."""


class NoProgress(KernelbraidError):
    """A round ended without a single event although something was due: a strategy returned nothing it could do."""


def never() -> str | None:
    """Nobody asks for a pause."""
    return None


def drive(crew: Crew, pause_requested: PauseRequested = never) -> None:
    """Run rounds until the campaign is paused or stopped. The caller holds the driver's lease.

    Raises NoProgress when a strategy neither acts nor lets the campaign end, PlanWithoutEnd when it only plans.
    """
    # LangGraph takes a second to load, and only a driver needs it: every command that reads starts without.
    from kernelbraid.agents.graph import build_round

    parallel = crew.campaign.read(lambda state: state.specified().policy.parallel)
    run_round = build_round(crew, parallel)
    while crew.campaign.read(lambda state: state.status in ("opening", "running")):
        if _ended(crew, pause_requested()):
            return
        before = crew.campaign.position
        run_round()
        stands_still = crew.campaign.read(lambda state: state.position) == before
        # The clock may have run out between the look at the stop rules and the round, which then did nothing.
        if stands_still and not _ended(crew, None):
            raise NoProgress(
                f"{crew.campaign.name} stands still at position {before} with work due: check its strategies"
            )


def _ended(crew: Crew, pause: str | None) -> bool:
    """Whether a pause or a stop was appended; what is due first wins."""
    stopped = crew.campaign.commit(lambda state: stop(state, crew, crew.campaign.idle_s()))
    if stopped:
        return True
    return pause is not None and bool(crew.campaign.commit(lambda state: _pause(state, pause)))


def stop(state: State, crew: Crew, elapsed_s: float) -> Decision | None:
    """The decision to stop, when a reason holds."""
    reason = duty.stop_reason(state, crew.desk, elapsed_s)
    if reason is None:
        return None
    return Decision("driver", state.fact_position, duty.stop_events(state, reason, elapsed_s))


def _pause(state: State, reason: str) -> Decision | None:
    if state.status not in ("opening", "running"):
        return None
    return Decision("driver", state.fact_position, decider.pause(state, reason))


def take_up(crew: Crew, environment: Environment, reason: str) -> None:
    """Record that a driver goes on after a pause or a crash. Raises RuleBroken on another environment."""
    crew.campaign.commit(
        lambda state: Decision("driver", state.fact_position, decider.resume(state, environment, reason))
    )
