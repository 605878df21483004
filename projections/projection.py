"""How a reading of the log is folded: an accumulator, a handler per event type, and one pass for several of them.

An accumulator belongs to the fold that made it and changes only through `apply`; what readers get is a frozen view,
made from accumulators by the projection's own module. Nothing here reads a clock or a store.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.registry import EVENT_TYPES
from kernelbraid.events.state import State, evolve

A = TypeVar("A")
Handler = Callable[[A, Recorded], None]


@dataclass(frozen=True, eq=False)
class Projection(Generic[A]):
    """A reading of the log: what it starts from, and what it does with each event type it cares about."""

    name: str
    start: Callable[[], A]
    handlers: Mapping[type[Event], Handler[A]]

    def apply(self, accumulator: A, recorded: Recorded) -> None:
        """Take one event in; an event type without a handler changes nothing."""
        handler = self.handlers.get(type(recorded.event))
        if handler is not None:
            handler(accumulator, recorded)


def every_event(handler: Handler[A]) -> dict[type[Event], Handler[A]]:
    """The same handler for each event type of the closed union."""
    return dict.fromkeys(EVENT_TYPES, handler)


STATE: Projection[State] = Projection("state", State, every_event(evolve))
"""The decider's own fold, for projections that read it instead of stating a rule twice."""


class Fold:
    """Several projections folded in one pass; `fold[PROJECTION]` is that one's accumulator.

    Projections are fed in the order given, each event to all of them before the next. A fold can be caught up at any
    time with the events that came after `position`.
    """

    def __init__(self, *projections: Projection[Any]) -> None:
        self._accumulators = {projection: projection.start() for projection in projections}
        self._routes = {event: tuple(self._listeners(event)) for event in EVENT_TYPES}
        self.position = 0

    def _listeners(self, event: type[Event]) -> Iterable[tuple[Handler[Any], Any]]:
        for projection, accumulator in self._accumulators.items():
            if event in projection.handlers:
                yield projection.handlers[event], accumulator

    def __getitem__(self, projection: Projection[A]) -> A:
        return cast(A, self._accumulators[projection])

    def apply(self, recorded: Recorded) -> None:
        """Take one event in."""
        self.extend((recorded,))

    def extend(self, log: Iterable[Recorded]) -> "Fold":
        """Take events in, in their order; returns itself."""
        routes = self._routes
        for recorded in log:
            for handler, accumulator in routes[type(recorded.event)]:
                handler(accumulator, recorded)
            self.position = recorded.position
        return self


def rebuild(log: Iterable[Recorded], *projections: Projection[Any]) -> Fold:
    """Fold a log from its first event through every projection, in one pass."""
    return Fold(*projections).extend(log)
