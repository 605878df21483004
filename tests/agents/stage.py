"""One campaign on which a test plays the agents one at a time, with mechanisms and latencies made for the purpose."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kernelbraid.agents import auditor, brancher, editor, planner, search
from kernelbraid.agents.campaign import Campaign
from kernelbraid.agents.crew import Crew
from kernelbraid.agents.search import catalogue_strategies
from kernelbraid.agents.strategy import Desk
from kernelbraid.events.event import Decision, Event
from kernelbraid.events.search import ActionProposed
from kernelbraid.events.state import Implementation, State
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT, Policy
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Verdict
from kernelbraid.kernels.audit.simulated import SimulatedHarness, never_fails
from kernelbraid.kernels.operators.catalogue import Facts, Mechanism, Scope
from kernelbraid.kernels.operators.operator import Sources, Workload, load_operator
from kernelbraid.kernels.operators.regions import region, replace_region
from tests.campaign.toy import BASE_S, TOY, marks

Gains = dict[str, float]
"""Mechanism to what it gains on the paths in its scope."""
Says = Callable[[Facts], str | None]


def always(facts: Facts) -> str | None:
    """Evidence at any time."""
    return "always"


def mechanism(
    name: str,
    gain_ratio: float = 1.5,
    scope: Scope = "joint",
    *,
    evidence: Says = always,
    edits: Callable[[Sources], Sources] | None = None,
    **conditions: tuple[str, ...],
) -> Mechanism:
    """A mechanism that marks the region of its scope, unless told what it edits."""
    place = "element" if scope == "joint" else scope
    return Mechanism(
        name=name,
        scope=scope,
        summary=name,
        rationale=f"{name} does less",
        numerical_risks="none",
        falsification="no gain",
        expected_gain_ratio=gain_ratio,
        edit=edits or partial(mark, name, place),
        evidence=evidence,
        **conditions,
    )


def mark(name: str, place: str, sources: Sources) -> Sources:
    """The sources with a mark in one region."""
    return replace_region(sources, place, f"/* {name} */\n" + region(sources, place))


MOST_PLANS = 50
"""Decisions of a planner before an action; more would be a circle."""


class Stage:
    """A qualified campaign of the toy operator, its desk and its harness."""

    def __init__(
        self,
        store: Store,
        *catalogue: Mechanism,
        gains: Gains | None = None,
        failure: Callable[[Candidate], Verdict | None] = never_fails,
        **policy: Any,
    ) -> None:
        self.store = store
        self.gains = gains or {}
        self._scopes = {item.name: item.scope for item in catalogue}
        operator = load_operator(TOY)
        self.harness = SimulatedHarness(operator, 0, self._latency, failure, self._count)
        self.audits = 0
        made = catalogue_strategies()
        self.desk = Desk(operator, "cpu", catalogue, store.blob, made.planner, made.editor, made.brancher)
        environment = auditor.environment_of(self.harness.environment())
        search.open_campaign(store, self.desk, environment, Policy(**policy), "toy")
        self.campaign = Campaign(store, "toy")
        self.crew = Crew(self.campaign, self.desk, self.harness)
        root = auditor.candidate(self.state, ROOT, self.desk)
        qualification = self.harness.qualify(root, ())
        self.campaign.commit(lambda state: auditor.record_root(state, qualification))

    def _latency(self, candidate: Candidate, workload: Workload) -> float:
        path = self.harness.operator.entry(workload.entry).path
        gain = 1.0
        for name in marks(candidate):
            gain *= self.gains.get(name, 1.0) if self._scopes[name] in ("joint", path) else 1.0
        return BASE_S[workload.name] / gain

    def _count(self, candidate: Candidate) -> float:
        self.audits += 1
        return 0.0

    @property
    def state(self) -> State:
        """The state now; not to be kept over an append."""
        return self.campaign.read(lambda state: state)

    def node(self, *mechanisms: str) -> Implementation:
        """The implementation with these mechanisms, in the order applied."""
        return next(item for item in self.state.implementations.values() if item.mechanisms == mechanisms)

    def commit(self, decide: Callable[[State], Decision | None]) -> list[Event]:
        """The events of one decision."""
        return [item.event for item in self.campaign.commit(decide)]

    def survey(self) -> list[Event]:
        """What the planner raises or withdraws now, if that comes first."""
        return self.commit(lambda state: as_planner(state, self.desk.planner.survey(state, self.desk)))

    def plan(self) -> list[Event]:
        """The planner's next decision."""
        return self.commit(lambda state: planner.plan(state, self.desk))

    def begin(self) -> str:
        """The implementation of the planner's next action, submitted."""
        while not (planned := [event for event in self.plan() if isinstance(event, ActionProposed)]):
            pass
        self.edit(planned[0].action)
        implementation = self.state.actions[planned[0].action].implementation
        assert implementation is not None
        return implementation

    def edit(self, action: str) -> list[Event]:
        """The editor's decision on an action."""
        return self.commit(lambda state: editor.edit(state, action, self.desk))

    def audit(self, implementation: str) -> list[Event]:
        """The auditor's."""
        return self.record(implementation, self.found(implementation))

    def found(self, implementation: str) -> AuditOutcome:
        """What the harness finds, measured against the best of this moment."""
        return self.harness.audit(self._candidate(implementation), self._candidate(ROOT), self._incumbent)

    def record(self, implementation: str, found: AuditOutcome) -> list[Event]:
        """The auditor's decision on a finding."""
        return self.commit(lambda state: auditor.record_audit(state, implementation, found))

    def judge(self, implementation: str) -> list[Event]:
        """The brancher's."""
        return self.commit(lambda state: brancher.branch(state, implementation, self.desk))

    def step(self) -> str:
        """Everything that follows from the planner's next action; returns its implementation, or "" without one."""
        for _ in range(MOST_PLANS):
            if self.state.open_actions:
                break
            if not self.plan():
                return ""
        (action,) = self.state.open_actions
        self.edit(action)
        implementation = self.state.actions[action].implementation
        if implementation is None:
            return ""
        self.audit(implementation)
        self.judge(implementation)
        return implementation

    def steps(self, count: int) -> None:
        """So many of them."""
        for _ in range(count):
            assert self.step()

    def tried(self) -> list[tuple[str, ...]]:
        """The mechanisms of every offspring, oldest first."""
        return [item.mechanisms for item in self.state.implementations.values() if item.id != ROOT]

    def _candidate(self, implementation: str) -> Candidate:
        return auditor.candidate(self.state, implementation, self.desk)

    def _incumbent(self) -> Candidate:
        return self._candidate(self.state.best or ROOT)


def as_planner(state: State, events: tuple[Event, ...]) -> Decision | None:
    """The planner's decision with these events."""
    return Decision("planner", state.fact_position, events) if events else None
