"""A planner of one's own: cheapest idea first, instead of most promising first.

A strategy is pure. It sees the folded state and the desk, and returns events that the decider's verbs make, so that
every rule holds and every campaign it runs can be replayed.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from kernelbraid import Strategies, catalogue_strategies, open_store, replay_strict, run
from kernelbraid.agents.catalogue.planner import CataloguePlanner
from kernelbraid.agents.strategy import Desk, Events
from kernelbraid.events.event import Event
from kernelbraid.events.search import ActionProposed
from kernelbraid.events.state import State


class FewestContractItems(CataloguePlanner):
    """Tries first what leaves the numerical contract alone; the catalogue's planner does the rest."""

    name = "fewest-contract-items"

    def choose(self, state: State, desk: Desk) -> Events:
        """The usual choice among the opportunities that touch the fewest contract items."""
        if not state.pending:
            return ()
        fewest = min(self._items(state, name, desk) for name in state.pending)
        pending = [name for name in state.pending if self._items(state, name, desk) == fewest]
        return super().choose(replace(state, pending=dict.fromkeys(pending)), desk)

    def _items(self, state: State, opportunity: str, desk: Desk) -> int:
        names = state.opportunities[opportunity].mechanisms
        return len({item for name in names for item in desk.by_name[name].contract})


def tried(event: Event) -> str | None:
    """A line for every action."""
    return f"{event.action}  {event.rationale[:90]}" if isinstance(event, ActionProposed) else None


def strategies() -> Strategies:
    """The catalogue's editor and brancher with this planner."""
    return replace(catalogue_strategies(), planner=FewestContractItems())


def main(audits: int = 5) -> None:
    """Run a campaign with the planner, then replay it with the same one and with the usual one."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'strategy.db'}")
        found = run("rms_norm", store=store, audits=audits, strategies=strategies())
        for recorded in store.read(found.campaign):
            if (line := tried(recorded.event)) is not None:
                print(line)
        ours = replay_strict(store, found.campaign, strategies=strategies())
        usual = replay_strict(store, found.campaign)
        print(f"replayed with this planner: {'agrees' if ours.divergence is None else ours.divergence.reason}")
        print(f"replayed with the usual:    {'agrees' if usual.divergence is None else usual.divergence.reason}")
        store.close()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
