"""What the engine costs beside the audits: the real store, rounds and statistics, with audits that are simulated."""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from kernelbraid.agents import forking, search
from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store, open_store
from kernelbraid.events.values import Policy
from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Qualification, TimingOutcome
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.ops.bench.operator import write_operator
from kernelbraid.ops.bench.strategies import busy_strategies

CAMPAIGN = "engine"
WINDOW = 100
SMALL_POSITION = 10
FORKS = 9


class StoppedHarness:
    """The simulated harness, with the time that it takes itself on a stopwatch."""

    def __init__(self, operator: Operator, target: str) -> None:
        self._harness = SimulatedHarness(operator, seed=0)
        self.spent_s = 0.0

    def environment(self) -> Environment:
        """As the simulated harness's."""
        return self._harness.environment()

    def qualify(self, root: Candidate, baselines: Sequence[Candidate]) -> Qualification:
        """As the simulated harness's."""
        with _Stopwatch(self):
            return self._harness.qualify(root, baselines)

    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """As the simulated harness's."""
        with _Stopwatch(self):
            return self._harness.audit(candidate, root, incumbent)

    def time(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> TimingOutcome:
        """As the simulated harness's."""
        with _Stopwatch(self):
            return self._harness.time(candidate, root, incumbent)

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Stopwatch:
    def __init__(self, harness: StoppedHarness) -> None:
        self._harness = harness

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._harness.spent_s += time.perf_counter() - self._started


@dataclass(slots=True)
class Laps:
    """Seconds of every iteration, from one audit's event to the next one's, the audit itself taken off."""

    overhead_s: list[float] = field(default_factory=list)
    harness: StoppedHarness | None = None
    _at_s: float | None = None
    _spent_s: float = 0.0

    def made(self, operator: Operator, target: str) -> AbstractContextManager[Auditing]:
        """The harness factory of the campaign measured."""
        self.harness = StoppedHarness(operator, target)
        return self.harness

    def take(self, recorded: Recorded, state: State) -> None:
        """Told of every event by the driver."""
        if not isinstance(recorded.event, AuditCompleted) or self.harness is None:
            return
        now_s = time.perf_counter()
        if self._at_s is not None:
            self.overhead_s.append(now_s - self._at_s - (self.harness.spent_s - self._spent_s))
        self._at_s, self._spent_s = now_s, self.harness.spent_s


def bench_engine(iterations: int) -> dict[str, object]:
    """Figures of a campaign of so many iterations; keys as `bench engine --json` prints them."""
    with TemporaryDirectory(prefix="kernelbraid-bench-") as folder:
        laps = searched(Path(folder), iterations)
        url = store_url(Path(folder))
        rebuild_s, state = _rebuilt(url)
        store = open_store(url)
        try:
            fork_ms = _forks(store, state)
        finally:
            store.close()
        return {
            "iterations": iterations,
            "overhead_ms": {
                "first_100_median": _median_ms(laps.overhead_s[:WINDOW]),
                "last_100_median": _median_ms(laps.overhead_s[-WINDOW:]),
            },
            "store_bytes": store_bytes(Path(folder)),
            "events": state.position,
            "rebuild_s": rebuild_s,
            "rebuild_events_per_s": state.position / rebuild_s,
            "fork_ms": fork_ms,
            "peak_rss_bytes": peak_rss_bytes(),
        }


def store_url(folder: Path) -> str:
    """The URL of the store in a bench's folder."""
    return f"sqlite:///{folder / 'engine.db'}"


def searched(folder: Path, iterations: int, *, pausing: bool = False) -> Laps:
    """Drives the synthetic campaign in the folder's store for so many iterations; then it stops, or pauses."""
    operator = write_operator(folder / "synthetic")
    laps = Laps()
    store = open_store(store_url(folder))
    try:
        search.run(
            str(operator),
            store=store,
            name=CAMPAIGN,
            policy=Policy(audits=None if pausing else iterations, kappa=10**9),
            strategies=busy_strategies(),
            harness=laps.made,
            watch=laps.take,
            pause_requested=lambda: "enough" if pausing and len(laps.overhead_s) >= iterations else None,
        )
    finally:
        store.close()
    return laps


def store_bytes(folder: Path) -> int:
    """Size of the store's files."""
    return sum(path.stat().st_size for path in folder.glob("engine.db*"))


def _rebuilt(url: str) -> tuple[float, State]:
    store = open_store(url, read_only=True)
    started = time.perf_counter()
    state = fold(store.read(CAMPAIGN))
    elapsed_s = time.perf_counter() - started
    store.close()
    return elapsed_s, state


def _forks(store: Store, large: State) -> dict[str, float]:
    """Median time of a fork near the beginning and at the end, the states folded already."""
    small = fold(store.read(CAMPAIGN, upto=_batch_end(store)))
    timed: dict[str, list[float]] = {"small": [], "large": []}
    for number in range(FORKS):
        for size, state in (("small", small), ("large", large)):
            started = time.perf_counter()
            forking.fork_state(state, store=store, name=f"{CAMPAIGN}-{size}-{number}", strategies=busy_strategies())
            timed[size].append(time.perf_counter() - started)
    return {size: _median_ms(spans) for size, spans in timed.items()}


def _batch_end(store: Store) -> int:
    ends = (item.position for item in store.read(CAMPAIGN) if item.batch[0] == item.batch[1])
    return next(position for position in ends if position >= SMALL_POSITION)


def _median_ms(spans_s: list[float]) -> float:
    return 1000 * statistics.median(spans_s)


def peak_rss_bytes() -> int:
    """The largest resident size of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def children_peak_rss_bytes() -> int:
    """The largest resident size of any process that this one waited for."""
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
