"""The seam between an agent and its judgement.

An agent knows when it is due and appends what was decided; a strategy decides. Strategies are pure: they see the
folded state and the desk, call the decider's verbs and return their events. Model and outside strategies plug in
here too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kernelbraid.events.event import Event
from kernelbraid.events.state import Action, Implementation, State
from kernelbraid.events.values import SourceFile
from kernelbraid.kernels.operators.catalogue import Mechanism
from kernelbraid.kernels.operators.operator import Operator, Sources

Events = tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """What an editor hands in: a complete source, what is in it, and the contract items it settles."""

    sources: Sources
    mechanisms: tuple[str, ...]
    contract_items: tuple[str, ...]


class PlannerStrategy(Protocol):
    """Decides what is worth an audit."""

    name: str

    def survey(self, state: State, desk: "Desk") -> Events:
        """Opportunities to raise or withdraw now; empty when none."""

    def choose(self, state: State, desk: "Desk") -> Events:
        """One ActionProposed, or nothing."""


class EditorStrategy(Protocol):
    """Writes offspring."""

    def edit(self, state: State, action: Action, desk: "Desk") -> Draft:
        """A complete offspring. Raises Refused when the edit does not fit its parent."""


class BrancherStrategy(Protocol):
    """Decides what becomes of a verified implementation."""

    name: str

    def judge(self, state: State, implementation: Implementation, desk: "Desk") -> Events:
        """Lineage events, at least one of which is about the implementation."""


@dataclass(frozen=True, slots=True)
class Desk:
    """All that an agent may look at besides the state: the operator, its catalogue, and blobs by digest."""

    operator: Operator
    target: str
    catalogue: tuple[Mechanism, ...]
    read_blob: Callable[[str], bytes]
    planner: PlannerStrategy
    editor: EditorStrategy
    brancher: BrancherStrategy
    by_name: Mapping[str, Mechanism] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {mechanism.name: mechanism for mechanism in self.catalogue})

    def sources(self, implementation: Implementation) -> Sources:
        """An implementation's files, read from the store."""
        return self.texts(implementation.sources)

    def texts(self, files: Iterable[SourceFile]) -> Sources:
        """Files by name, read from the store."""
        return {file.name: self.read_blob(file.digest).decode() for file in files}
