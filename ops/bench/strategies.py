"""Strategies that keep the engine busy: one opportunity after another, and sources that have nothing in common."""

import hashlib
from collections.abc import Iterator
from itertools import islice

from kernelbraid.agents.search import Strategies
from kernelbraid.agents.strategy import Desk, Draft, Events
from kernelbraid.events import decider
from kernelbraid.events.search import ActionProposed, OpportunityRaised
from kernelbraid.events.state import Action, Implementation, State
from kernelbraid.events.values import ROOT
from kernelbraid.ops.bench.operator import SOURCE_FILE, source

UNRELATED_LINES = 52


class BusyPlanner:
    """Raises one opportunity on the best whenever none is pending, and tries it."""

    name = "busy"

    def survey(self, state: State, desk: Desk) -> Events:
        """One opportunity, unless one waits already."""
        if state.pending:
            return ()
        parent = state.best or ROOT
        raised = OpportunityRaised(
            opportunity=state.next_opportunity,
            mechanisms=(f"rewrite_{len(state.opportunities) + 1}",),
            parents=(parent,),
            scope="joint",
            workloads=tuple(workload.name for workload in state.specified().contract.workloads),
            evidence=f"{parent} takes all of the weighted latency, and nothing was written in its place so far",
            rationale="another source altogether may be faster",
            expected_gain_ratio=1.1,
        )
        return decider.raise_opportunities(state, (raised,))

    def choose(self, state: State, desk: Desk) -> Events:
        """The oldest pending opportunity."""
        opportunity = state.opportunities[next(iter(state.pending))]
        proposed = ActionProposed(
            action=state.next_action,
            opportunity=opportunity.id,
            parents=opportunity.parents,
            scope=opportunity.scope,
            rationale="it is the oldest one that waits",
            numerical_risks="none: nothing is computed",
            falsification="no lower weighted latency than the incumbent's",
            strategy=self.name,
        )
        return decider.propose_action(state, proposed)


class UnrelatedEditor:
    """Writes 2 KB that no other source resembles, the same ones in every run."""

    def edit(self, state: State, action: Action, desk: Desk) -> Draft:
        """A complete offspring."""
        mechanisms = (*state.implementations[action.parents[0]].mechanisms[-3:], f"rewrite_{action.id}")
        return Draft({SOURCE_FILE: source("\n".join(_lines(action.id)))}, mechanisms, ("order",))


class TidyBrancher:
    """Archives whatever is not the best."""

    name = "tidy"

    def judge(self, state: State, implementation: Implementation, desk: Desk) -> Events:
        """One decision."""
        if implementation.id == state.best:
            return decider.continue_branch(state, implementation.id, None, "it is the best")
        return decider.archive_branch(state, implementation.id, f"{implementation.performance}, so set aside")


def _lines(seed: str) -> Iterator[str]:
    """C-like lines from a chain of hashes."""

    def chain() -> Iterator[str]:
        state = seed
        while True:
            state = hashlib.sha256(state.encode()).hexdigest()
            yield f"y[{state[:4]}] = x[0x{state[4:12]}];"

    return islice(chain(), UNRELATED_LINES)


def busy_strategies() -> Strategies:
    """All three."""
    return Strategies(BusyPlanner(), UnrelatedEditor(), TidyBrancher())
