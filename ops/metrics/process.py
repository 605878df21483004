"""Metrics of the process that drives: how long appends take, how long they wait for the lock, how far metrics lag.

They are no part of what happened and so in a registry of their own; replaying a log never gives them.
"""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from prometheus_client import CollectorRegistry, Gauge, Histogram

from kernelbraid.events.event import Decision, Recorded
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.store import Store

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class ProcessMetrics:
    """The registry and its three metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.append_s = self._histogram("append_seconds", "Time of an append, waiting for the lock included.")
        self.lock_wait_s = self._histogram("lock_wait_seconds", "Time an append waited to become the store's writer.")
        self.lag_events = Gauge(
            "kernelbraid_process_lag_events",
            "Events that the driver had appended and the served metrics did not hold when they were asked for.",
            registry=self.registry,
        )

    def _histogram(self, name: str, told: str) -> Histogram:
        return Histogram(f"kernelbraid_process_{name}", told, buckets=BOUNDS_S, registry=self.registry)

    def observe(self, store: Store) -> Store:
        """The same store, its appends timed."""
        if isinstance(store, SqliteStore):
            store.recorder.on_lock_wait = self.lock_wait_s.observe
        return cast(Store, MeasuredStore(store, self.append_s.observe))


class MeasuredStore:
    """A store whose appends are timed; everything else is the store's own."""

    def __init__(self, store: Store, observe: Callable[[float], None]) -> None:
        self._store = store
        self._observe = observe

    def append(
        self, campaign: str, expected_position: int, decision: Decision, *, recorded_at: datetime | None = None
    ) -> tuple[Recorded, ...]:
        """As the store's."""
        started = time.perf_counter()
        try:
            return self._store.append(campaign, expected_position, decision, recorded_at=recorded_at)
        finally:
            self._observe(time.perf_counter() - started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
