"""One campaign as its driver holds it: a cached fold, kept current by tail, and the one way to append."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from kernelbraid.events.errors import Conflict
from kernelbraid.events.event import Decision, Recorded
from kernelbraid.events.state import State, evolve, fold
from kernelbraid.events.store import Store

Decide = Callable[[State], Decision | None]
Watch = Callable[[Recorded, State], None]
T = TypeVar("T")


class Campaign:
    """Folds a campaign and commits decisions to it; safe to use from several threads.

    `watch` is told of every event once, after it was folded. The state it sees must not be kept.
    """

    def __init__(self, store: Store, name: str, watch: Watch | None = None) -> None:
        self.store = store
        self.name = name
        self._lock = threading.RLock()
        self._state = fold(store.read(name))
        self._watch = watch
        self._decided_at = datetime.now(UTC)

    @property
    def position(self) -> int:
        """The last position folded."""
        return self._state.position

    def read(self, look: Callable[[State], T]) -> T:
        """What `look` makes of the current state."""
        with self._lock:
            self._catch_up()
            return look(self._state)

    def commit(self, decide: Decide) -> tuple[Recorded, ...]:
        """Append what `decide` decides at the current state.

        When somebody else appended first, the log is folded again and `decide` asked again: whatever was paid for
        outside is kept, only the decision about it is made anew. What is recorded is the moment of the decision, so
        that a replay sees the clock as the decision saw it.
        """
        with self._lock:
            while True:
                self._catch_up()
                self._decided_at = datetime.now(UTC)
                decision = decide(self._state)
                if decision is None:
                    return ()
                try:
                    recorded = self.store.append(
                        self.name, self._state.position, decision, recorded_at=self._decided_at
                    )
                except Conflict:
                    continue
                self._take(recorded)
                return recorded

    def idle_s(self) -> float:
        """Seconds from a driver's last event to the decision being made; for use inside `commit`."""
        return since_driven_s(self._state, self._decided_at)

    def _catch_up(self) -> None:
        self._take(self.store.tail(self.name, self._state.position))

    def _take(self, recorded: tuple[Recorded, ...]) -> None:
        for item in recorded:
            evolve(self._state, item)
            if self._watch is not None:
                self._watch(item, self._state)


def since_driven_s(state: State, now: datetime) -> float:
    """Seconds of a driver's time at this moment that `state.spent` does not hold yet."""
    return 0.0 if state.driven_at is None else max(0.0, (now - state.driven_at).total_seconds())
