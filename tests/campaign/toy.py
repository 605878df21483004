"""The toy operator's campaigns: where it lies, how fast each offspring is, and short ways to search, fork and tell.

Everything is the real engine; only the harness is simulated, and its latencies are a function of the marks that
mechanisms left in the source.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelbraid.agents import search
from kernelbraid.agents.search import HarnessFactory
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.store import Store, open_store
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Verdict
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator, Workload
from kernelbraid.projections.summary import CampaignSummary

TOY = str(Path("tests/campaign/operators/toy"))
REPOSITORY = Path(__file__).resolve().parents[2]
BASE_S = MappingProxyType({"full": 4e-3, "decode_b8": 4e-4, "decode_b16": 7e-4})

Gain = Callable[[frozenset[str], Workload], float]


def marks(candidate: Candidate) -> frozenset[str]:
    """The mechanisms whose marks stand in a candidate's source."""
    return frozenset(re.findall(r"/\* (\w+) \*/", "\n".join(candidate.sources.values())))


def told_gain(applied: frozenset[str], workload: Workload) -> float:
    """How many times faster than the root a set of mechanisms is: the story that the toy catalogue tells."""
    path = "full" if workload.name == "full" else "decode"
    gain = 1.0
    for name, ratio in ALONE.items():
        if name in applied:
            gain *= ratio.get(path, 1.0)
    if {"wide", "tree"} <= applied:
        gain *= 1.08
    if {"pack", "prefetch"} <= applied:
        gain *= 1.45
    return gain


ALONE: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "lanes": {"full": 1.9, "decode": 1.7},
        "tree": {"full": 1.1, "decode": 1.1},
        "pack": {"full": 0.93, "decode": 0.93},
        "full_tile": {"full": 1.3},
        "decode_split": {"decode": 1.3},
        "decode_cache": {"decode": 1.025},
    }
)


def latency(gain: Gain = told_gain) -> Callable[[Candidate, Workload], float]:
    """A latency model in seconds: the root's time over the gain of the marks."""
    return lambda candidate, workload: BASE_S[workload.name] / gain(marks(candidate), workload)


def failing(*names: str) -> Callable[[Candidate], Verdict | None]:
    """Candidates with one of these marks disagree between full sequence and decode."""
    return lambda candidate: Correctness.DISAGREEMENT if marks(candidate) & set(names) else None


def simulated(seed: int = 0, gain: Gain = told_gain, **options: Any) -> HarnessFactory:
    """A factory of simulated harnesses for the toy; `stream` fails unless told otherwise."""
    options.setdefault("failure", failing("stream"))
    return lambda operator, target: SimulatedHarness(operator, seed, latency(gain), **options)


def no_harness(operator: Operator, target: str) -> Any:
    """A factory for what must never audit."""
    raise AssertionError("an audit was asked for where none may be")


@contextmanager
def memory() -> Iterator[Store]:
    """A store in memory."""
    store = open_store(":memory:")
    try:
        yield store
    finally:
        store.close()


def run_toy(
    store: Store, name: str = "toy", *, harness: HarnessFactory | None = None, **options: Any
) -> CampaignSummary:
    """Search the toy operator; policy keys and `search.run` options as keywords."""
    return search.run(TOY, store=store, name=name, harness=harness or simulated(), **options)


def events_of(store: Store, campaign: str, kind: type[Event] | tuple[type[Event], ...] = Event) -> list[Any]:
    """A campaign's payloads of one kind, oldest first."""
    return [item.event for item in store.read(campaign) if isinstance(item.event, kind)]


def story(recorded: Iterator[Recorded]) -> list[tuple[Any, ...]]:
    """What a log says apart from times, hashes, positions and operational events; `cause` as an ordinal."""
    ordinals = {0: 0}
    last, told = 0, []
    for item in recorded:
        if not item.event.operational:
            last += 1
            told.append((item.actor, ordinals[item.cause], item.batch, item.event))
        ordinals[item.position] = last
    return told
