"""Editing without a model: mechanisms rewrite named regions of the parent's actual source."""

from kernelbraid.agents.strategy import Desk, Draft
from kernelbraid.events.state import Action, State
from kernelbraid.kernels.operators.catalogue import apply


class CatalogueEditor:
    """The editor of a catalogue campaign."""

    def edit(self, state: State, action: Action, desk: Desk) -> Draft:
        """The parent's source with the action's mechanism; a merge applies recorded mechanisms again.

        A merge starts at the common ancestor: first what the first parent added since, then what the others did.
        """
        base = state.implementations[action.ancestor or action.parents[0]]
        names = self._names(state, action)
        mechanisms = [desk.by_name[name] for name in names]
        items = tuple(dict.fromkeys(item for mechanism in mechanisms for item in mechanism.contract))
        return Draft(apply(mechanisms, desk.sources(base)), (*base.mechanisms, *names), items)

    def _names(self, state: State, action: Action) -> tuple[str, ...]:
        if action.ancestor is None:
            return state.opportunities[action.opportunity].mechanisms
        base = state.implementations[action.ancestor].mechanisms
        added = (name for parent in action.parents for name in state.implementations[parent].mechanisms)
        return tuple(dict.fromkeys(name for name in added if name not in base))
