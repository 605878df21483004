"""Where an audit's seconds go, for whoever makes it faster. Phases may overlap, so they add up to no total."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Profile:
    """Seconds and times by name, of one audit."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside under this name, however it ends."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started
            self.counts[name] += 1

    def clear(self) -> None:
        """Begin another audit."""
        self.seconds.clear()
        self.counts.clear()

    def summary(self) -> Mapping[str, tuple[float, int]]:
        """By name, the longest first: seconds and how often."""
        names = sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)
        return {name: (round(self.seconds[name], 4), self.counts[name]) for name in names}
