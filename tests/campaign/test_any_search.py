"""Whatever a catalogue holds and a machine does: a search ends, its log holds, and it can be decided again and forked.

Catalogues, gains, failures, noise, parallelism, pauses and forks are drawn from a seed, so a failing seed is a case.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from kernelbraid.agents import evidence_check, search
from kernelbraid.agents.forking import fork
from kernelbraid.agents.replay import replay_strict
from kernelbraid.agents.search import HarnessFactory
from kernelbraid.events.state import fold
from kernelbraid.events.store import Store
from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Infrastructure, Verdict
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.catalogue import Mechanism, Scope
from kernelbraid.kernels.operators.operator import Operator, Workload, load_operator
from tests.agents.stage import mark, mechanism
from tests.campaign.toy import BASE_S, TOY, marks, memory, run_toy

SCOPES: tuple[Scope, ...] = ("joint", "joint", "full", "decode")
PROMISES = (0.95, 1.0, 1.05, 1.2, 1.5, 2.0)
GAINS = (0.7, 0.9, 1.0, 1.0, 1.004, 1.02, 1.1, 1.3, 1.6)
MOST_RESUMES = 40


def drawn_catalogue(rng: random.Random) -> tuple[Mechanism, ...]:
    """Three to twelve mechanisms with conditions on each other, some of which break their scope."""
    names = [f"m{number}" for number in range(rng.randint(3, 12))]
    return tuple(drawn_mechanism(rng, names, number) for number in range(len(names)))


def drawn_mechanism(rng: random.Random, names: list[str], number: int) -> Mechanism:
    """One of them; it requires earlier ones only."""
    conditions: dict[str, Any] = {}
    if number and rng.random() < 0.5:
        conditions["requires"] = ("|".join(rng.sample(names[:number], min(number, rng.randint(1, 2)))),)
    if rng.random() < 0.2:
        conditions["excludes"] = (rng.choice(names),)
    if rng.random() < 0.4:
        conditions["opened_by"] = tuple(rng.sample(names, rng.randint(1, 3)))
    edits = partial(mark, names[number], "element") if rng.random() < 0.08 else None
    return mechanism(names[number], rng.choice(PROMISES), rng.choice(SCOPES), edits=edits, **conditions)


class Machine(SimulatedHarness):
    """A simulated machine with a name."""

    name = "simulated"

    def environment(self) -> Environment:
        """The simulated one's, under this machine's name."""
        return replace(super().environment(), cpu_model=self.name)


@dataclass
class World:
    """What mechanisms really gain, and what fails; by the candidate alone, but for a machine that recovers."""

    rng: random.Random
    catalogue: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        self.gains = {item.name: (item.scope, self.rng.choice(GAINS)) for item in self.catalogue}
        self.flaky = self.rng.random() < 0.5
        self.faults: dict[str, int] = {}

    def machine(self, name: str) -> HarnessFactory:
        """Harnesses of one machine; `fast` is 2.5 times as fast as the others."""
        noise_ratio = self.rng.choice((0.001, 0.002))

        def factory(operator: Operator, target: str) -> Machine:
            latency = partial(self.latency_s, 0.4 if name == "fast" else 1.0)
            made = Machine(operator, 0, latency, self.verdict, self.delay_s, noise_ratio)
            made.name = name
            return made

        return factory

    def latency_s(self, slowness: float, candidate: Candidate, workload: Workload) -> float:
        """The root's, over the gains of the marks."""
        path = "full" if workload.name == "full" else "decode"
        gain = 1.0
        for scope, ratio in (self.gains[name] for name in marks(candidate)):
            gain *= ratio if scope in ("joint", path) else 1.0
        return slowness * BASE_S[workload.name] / gain

    def verdict(self, candidate: Candidate) -> Verdict | None:
        """A crash for some offspring; for some others a device that fails up to three times."""
        lot = int(candidate.digest[:6], 16) % 100
        if not marks(candidate) or lot >= 14:
            return None
        if lot < 8:
            return Correctness.CRASHED
        self.faults[candidate.digest] = self.faults.get(candidate.digest, 0) + 1
        return Infrastructure.DEVICE_FAULT if self.flaky and self.faults[candidate.digest] <= lot % 4 else None

    def delay_s(self, candidate: Candidate) -> float:
        """Up to 4 ms."""
        return int(candidate.digest[6:10], 16) % 5 * 0.001


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store."""
    with memory() as opened:
        yield opened


@pytest.mark.parametrize(
    "seed", [71, *range(11), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1000, 1400))]
)
def test_any_search_and_its_forks_end_and_can_be_decided_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    world = World(rng, drawn_catalogue(rng))
    monkeypatch.setattr(search, "load_catalogue", lambda operator, target: world.catalogue)
    # given a search with any policy, paused at any time
    home = world.machine("home")
    run_toy(store, harness=home, pause_requested=pausing(rng), **drawn_policy(rng))
    finish(store, "toy", home)
    holds(store, "toy")
    # when it is forked anywhere, here or on another machine, and that fork once more
    for _ in range(2):
        holds_when_forked(store, world, "toy", rng)
    assert store.verify("toy").problems == ()


def drawn_policy(rng: random.Random) -> dict[str, Any]:
    """Small budgets, and large ones."""
    return {
        "parallel": rng.choice((1, 1, 2, 3, 4)),
        "audits": rng.choice((None, 5, 40)),
        "kappa": rng.choice((3, 30)),
        "edits_failing": rng.choice((2, 10)),
    }


def pausing(rng: random.Random) -> Callable[[], str | None]:
    """Asks for a pause before every tenth round or so."""
    return lambda: "any time" if rng.random() < 0.1 else None


def finish(store: Store, campaign: str, machine: HarnessFactory) -> None:
    """Resume until the campaign is stopped."""
    for _ in range(MOST_RESUMES):
        if fold(store.read(campaign)).status == "stopped":
            return
        search.resume(campaign, store=store, harness=machine)
    raise AssertionError(f"{campaign} does not end")


def holds(store: Store, campaign: str) -> None:
    """It is decided again, its figures follow from its blocks, and nothing is left open that was measured."""
    report = replay_strict(store, campaign)
    assert report.divergence is None, report.divergence
    assert evidence_check.recheck(store, campaign) == ()
    state = fold(store.read(campaign))
    verified = {name for name, node in state.implementations.items() if node.verified}
    assert verified >= set(state.frontier) >= set(state.merge_list)
    assert not set(state.frontier) & set(state.archive)
    assert state.best is None or state.best in state.frontier


def holds_when_forked(store: Store, world: World, parent: str, rng: random.Random) -> None:
    """A fork at the end of any append of the parent's own ends and holds, and so does a fork of that."""
    own = [item for item in store.read(parent) if item.campaign == parent and item.batch[0] == item.batch[1]]
    machine = world.machine(rng.choice(("home", "fast")))
    ground: Any = machine(load_operator(TOY), "cpu")
    changes = {"kappa": 90, "audits": rng.choice((3, None))}
    child = fork(parent, store=store, at=rng.choice(own).position, changes=changes, harness=ground)
    finish(store, child, machine)
    holds(store, child)
    if rng.random() < 0.4 and "." not in parent:
        holds_when_forked(store, world, child, rng)
