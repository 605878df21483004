"""Strategies that never run out: every offspring is the root with one more remark, so only a latency model differs."""

import re

from kernelbraid.agents.search import Strategies
from kernelbraid.agents.strategy import Desk, Draft, Events
from kernelbraid.events import decider
from kernelbraid.events.search import ActionProposed, OpportunityRaised
from kernelbraid.events.state import Action, Implementation, State
from kernelbraid.events.values import ROOT
from kernelbraid.kernels.audit.outcome import Candidate


class Remarks:
    """Planner, editor and brancher in one: opportunity n adds the remark `try n`; what does not win is archived."""

    name = "endless"

    def survey(self, state: State, desk: Desk) -> Events:
        """One opportunity whenever none is pending."""
        if state.pending:
            return ()
        raised = OpportunityRaised(
            opportunity=state.next_opportunity,
            mechanisms=(f"try_{len(state.opportunities) + 1}",),
            parents=(state.best or ROOT,),
            scope="joint",
            workloads=(),
            evidence="none",
            rationale="none",
            expected_gain_ratio=1.0,
        )
        return decider.raise_opportunities(state, [raised])

    def choose(self, state: State, desk: Desk) -> Events:
        """The oldest pending one, on the best."""
        proposed = ActionProposed(
            action=state.next_action,
            opportunity=next(iter(state.pending)),
            parents=(state.best or ROOT,),
            scope="joint",
            rationale="none",
            numerical_risks="none",
            falsification="no gain",
            strategy="endless",
        )
        return decider.propose_action(state, proposed)

    def edit(self, state: State, action: Action, desk: Desk) -> Draft:
        """The root's source with the action's remark."""
        (name,) = state.opportunities[action.opportunity].mechanisms
        remark = f"/* {name} */\n"
        sources = {file: text + remark for file, text in desk.sources(state.implementations[ROOT]).items()}
        return Draft(sources, (name,), ())

    def judge(self, state: State, implementation: Implementation, desk: Desk) -> Events:
        """Keep the best, archive the rest."""
        if implementation.id == state.best:
            return decider.continue_branch(state, implementation.id, None, "it won")
        return decider.archive_branch(state, implementation.id, "it did not win")


def number(candidate: Candidate) -> int:
    """Which try a candidate is; 0 for the root."""
    found = re.search(r"/\* try_(\d+) \*/", "\n".join(candidate.sources.values()))
    return int(found[1]) if found else 0


def endless() -> Strategies:
    """A crew that never runs out."""
    one = Remarks()
    return Strategies(one, one, one)
