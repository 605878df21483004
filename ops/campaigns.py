"""Campaigns as the reading commands want them: folded up to a position, and whether somebody drives them."""

from collections.abc import Iterator

from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store
from kernelbraid.ops.collector import uncollected
from kernelbraid.ops.exits import NotFound
from kernelbraid.ops.wiring import campaign_row
from kernelbraid.projections.lineage import LINEAGE, Lineage, lineage
from kernelbraid.projections.projection import STATE, rebuild


def log_of(store: Store, name: str, at: int | None = None) -> Iterator[Recorded]:
    """The campaign's events up to a position. Raises NotFound for a campaign or a position that is not there."""
    row = campaign_row(store, name)
    if at is not None and at > row.position:
        raise NotFound(f"{name} has no position {at}: its last one is {row.position}")
    return store.read(name, upto=at)


def state_at(store: Store, name: str, at: int | None = None) -> State:
    """The decider's state after a position."""
    with uncollected():
        return fold(log_of(store, name, at))


def lineage_at(store: Store, name: str, at: int | None = None) -> tuple[State, Lineage]:
    """State and derivation graph after a position."""
    with uncollected():
        folded = rebuild(log_of(store, name, at), STATE, LINEAGE)
    return folded[STATE], lineage(folded[STATE], folded[LINEAGE])


def implementation_in(state: State, name: str) -> str:
    """The implementation's id, `best` standing for the best one. Raises NotFound."""
    if name == "best" and state.best is not None:
        return state.best
    if name not in state.implementations:
        last = next(reversed(state.implementations), "none")
        raise NotFound(
            f"{state.campaign} has no implementation {name} at position {state.position}: {last} is the last"
        )
    return name
