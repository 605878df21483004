"""Where the search stands: frontier F, archive R, pending opportunities O, merge list and best I*.

All of it is read from the decider's state; there is no second rule here.
"""

from dataclasses import dataclass

from kernelbraid.events.state import State


@dataclass(frozen=True, slots=True)
class Frontier:
    """Frozen view, ids in the order the log put them there. `best` is None until the root qualifies."""

    best: str | None
    frontier: tuple[str, ...]
    archive: tuple[str, ...]
    pending: tuple[str, ...]
    merge_list: tuple[str, ...]
    undecided: tuple[str, ...]
    """Verified, and waiting for the brancher."""
    retimings: tuple[str, ...]
    """Won against an implementation that is the best no longer."""
    in_flight: tuple[str, ...]
    """Open actions."""
    stale: tuple[str, ...]
    """To be audited again before any action."""


def frontier(state: State) -> Frontier:
    """What the search can go on from."""
    return Frontier(
        best=state.best,
        frontier=tuple(state.frontier),
        archive=tuple(state.archive),
        pending=tuple(state.pending),
        merge_list=tuple(state.merge_list),
        undecided=tuple(state.undecided_branches),
        retimings=tuple(state.retimings),
        in_flight=tuple(state.open_actions),
        stale=tuple(state.stale),
    )
