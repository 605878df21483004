"""No sequence of commands breaks the rules.

A machine sends valid and invalid commands to the decider's verbs. Whatever they return is judged by `Recount`, which
states the rules a second time, naively and from the events alone; after every step the fold must agree with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import (
    CampaignForked,
    CampaignOpened,
    CampaignPaused,
    CampaignResumed,
    CampaignStopped,
    NoteAdded,
    RootQualified,
)
from kernelbraid.events.effects import ModelCalled, ModelRequested
from kernelbraid.events.errors import RuleBroken
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.lineage import (
    BranchAbandoned,
    BranchArchived,
    BranchContinued,
    BranchDeferred,
    BranchReactivated,
)
from kernelbraid.events.search import (
    ActionDropped,
    ActionProposed,
    EditFailed,
    ImplementationSubmitted,
    OpportunityRaised,
    OpportunityWithdrawn,
)
from kernelbraid.events.state import State, evolve, fold
from kernelbraid.events.values import (
    ROOT,
    Correctness,
    DropReason,
    Infrastructure,
    Measurement,
    Performance,
    Region,
    StopReason,
)
from tests.events.given import (
    DIGESTS,
    ELSEWHERE,
    ENVIRONMENT,
    FAILED_CHECKS,
    LIMITS,
    audited,
    failing,
    measured,
    one_append,
    opened,
    other_contract,
    proposed,
    raised,
    recorded,
    regions,
    root_audit,
    slowed,
    submitted,
    timed,
)

Batch = tuple[Event, ...]
BOGUS = ["i0000", "i0099", "a0099", "o0099", ""]


class Recount:
    """The rules of a campaign stated once more, as sets and assertions."""

    def __init__(self) -> None:
        self.clock = 0
        self.stopped = self.paused = False
        self.best: str | None = None
        self.kappa = self.confirmations = self.failing_edits = self.audits = 0
        self.open: dict[str, ActionProposed] = {}
        self.actions: dict[str, ActionProposed] = {}
        self.offspring: dict[str, ImplementationSubmitted] = {}
        self.made: dict[str, str] = {}
        self.opportunities: dict[str, OpportunityRaised] = {}
        self.returns: dict[str, int] = {}
        self.verified: set[str] = set()
        self.failed: set[str] = set()
        self.crowned: set[str] = set()
        self.frontier: set[str] = set()
        self.archive: set[str] = set()
        self.merges: set[str] = set()
        self.pending: set[str] = set()
        self.consumed: set[str] = set()
        self.withdrawn: set[str] = set()
        self.undecided: set[str] = set()
        self.unpromoted: set[str] = set()
        self.due: set[str] = {ROOT}
        self.faults: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.archived_at: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        self.requests: set[str] = set()
        self.tokens = 0
        self.regions: dict[str, dict[str, Region]] = {}
        self.handed_in = False
        """Whether the append being judged brings a whole offspring from outside."""

    @classmethod
    def replay(cls, batches: list[Batch]) -> "Recount":
        recount = cls()
        for batch in batches:
            recount.take(batch)
        return recount

    def take(self, batch: Batch) -> None:
        """Judge one append and take it in."""
        expected = self.follow_ups(batch[0])
        if expected is not None:
            assert tuple(type(event) for event in batch[1:]) == expected
        types = tuple(type(event) for event in batch)
        self.handed_in = types == (OpportunityRaised, ActionProposed, ImplementationSubmitted)
        for event in batch:
            self.clock += 1
            self.judge_and_take(event)

    def follow_ups(self, event: Event) -> tuple[type[Event], ...] | None:
        """What the same append must go on with; None where it is free."""
        if isinstance(event, CampaignForked):
            return (ActionDropped,) * len(self.open)
        if isinstance(event, OpportunityRaised):
            return None
        if isinstance(event, TimingCompleted):
            return self.promotion(event)
        if not isinstance(event, AuditCompleted):
            return ()
        if isinstance(event.verdict, Infrastructure):
            again = self.faults.get(event.implementation, 0) > 0
            return (CampaignPaused,) if again and not (self.paused or self.stopped) else ()
        if event.implementation != ROOT:
            return self.promotion(event)
        if self.stopped:
            return ()
        return (RootQualified,) if event.verdict is Correctness.VERIFIED else (CampaignStopped,)

    def promotion(self, event: AuditCompleted | TimingCompleted) -> tuple[type[Event], ...]:
        won = event.performance is Performance.PROMOTABLE and event.measurement is not None
        current = event.measurement is not None and event.measurement.incumbent == self.best
        return (ImplementationPromoted,) if won and current and not self.stopped else ()

    @property
    def opening(self) -> bool:
        return self.best is None or bool(self.due)

    @property
    def running(self) -> bool:
        return not (self.stopped or self.paused or self.opening)

    @property
    def takes_work(self) -> bool:
        """Work from outside may wait in a paused campaign; the search's own may not."""
        return self.running or (self.handed_in and self.paused and not self.stopped)

    def judge_and_take(self, event: Event) -> None:
        if self.stopped:
            assert isinstance(event, NoteAdded | AuditCompleted | ModelCalled | CampaignForked | ActionDropped)
        getattr(self, f"take_{type(event).__name__}")(event)

    # --- a campaign's life

    def take_CampaignOpened(self, event: CampaignOpened) -> None:
        assert self.clock == 1
        self.policy = event.specification.policy
        self.regions[ROOT] = {region.name: region for region in event.regions}
        self.seen[ROOT] = self.clock

    def take_RootQualified(self, event: RootQualified) -> None:
        assert ROOT in self.verified
        self.crown(ROOT)

    def crown(self, name: str) -> None:
        self.best = name
        self.crowned.add(name)
        self.frontier.add(name)
        self.archive.discard(name)
        self.seen[name] = self.clock

    def take_CampaignForked(self, event: CampaignForked) -> None:
        assert self.kappa < event.specification.policy.kappa
        self.policy = event.specification.policy
        self.stopped = self.paused = False
        self.failing_edits = self.audits = self.tokens = 0
        self.reserved.clear()
        self.faults = {name: count for name, count in self.faults.items() if name not in self.due}
        if event.stale:
            self.due = {ROOT, *self.frontier} | ({self.best} if self.best else set())
            self.faults = {name: count for name, count in self.faults.items() if name not in self.due}
            self.verified.clear()
            self.undecided.clear()
            self.unpromoted.clear()
            self.best = None
        elif self.best is None:
            # Judged anew, though it may have been judged after the stop: what failed then does not count.
            self.due.add(ROOT)
            self.faults.pop(ROOT, None)

    def take_CampaignPaused(self, event: CampaignPaused) -> None:
        assert not self.paused
        self.paused = True

    def take_CampaignResumed(self, event: CampaignResumed) -> None:
        self.paused = False
        in_audit = {self.made[name] for name in self.open if name in self.made}
        self.faults = {name: count for name, count in self.faults.items() if name not in self.due | in_audit}

    def take_CampaignStopped(self, event: CampaignStopped) -> None:
        if event.reason not in (StopReason.USER, StopReason.ROOT_UNQUALIFIED):
            assert self.running
            assert not self.open
            assert not self.unpromoted
        if event.reason is StopReason.KAPPA:
            assert self.kappa >= self.policy.kappa
        if event.reason is StopReason.BUDGET:
            assert self.budget_spent()
        if event.reason is StopReason.EDITS_FAILING:
            assert self.failing_edits >= self.policy.edits_failing
        if event.reason is StopReason.OPPORTUNITIES_EXHAUSTED:
            assert not self.pending
        self.stopped = True

    def budget_spent(self) -> bool:
        audits, tokens = self.policy.audits, self.policy.tokens
        used = self.tokens + sum(self.reserved.values())
        return (audits is not None and self.audits + len(self.open) >= audits) or (
            tokens is not None and used >= tokens
        )

    def take_NoteAdded(self, event: NoteAdded) -> None:
        pass

    # --- search

    def parents(self, names: tuple[str, ...]) -> None:
        assert len(set(names)) == len(names) > 0
        assert set(names) <= self.verified
        assert not set(names) & self.failed

    def take_OpportunityRaised(self, event: OpportunityRaised) -> None:
        assert self.takes_work
        assert event.opportunity == f"o{len(self.opportunities) + 1:04d}"
        self.parents(event.parents)
        self.opportunities[event.opportunity] = event
        self.pending.add(event.opportunity)
        self.seen[event.opportunity] = self.clock

    def take_OpportunityWithdrawn(self, event: OpportunityWithdrawn) -> None:
        assert self.running
        self.pending.remove(event.opportunity)
        self.withdrawn.add(event.opportunity)

    def take_ActionProposed(self, event: ActionProposed) -> None:
        assert self.takes_work
        assert event.action == f"a{len(self.actions) + 1:04d}"
        assert event.scope == self.opportunities[event.opportunity].scope
        assert self.handed_in or len(self.open) < self.policy.parallel
        assert self.kappa < self.policy.kappa
        assert self.handed_in or self.failing_edits < self.policy.edits_failing
        assert not self.budget_spent()
        self.parents(event.parents)
        self.pending.remove(event.opportunity)
        self.consumed.add(event.opportunity)
        self.actions[event.action] = self.open[event.action] = event
        self.seen[event.action] = self.clock
        if len(event.parents) > 1:
            assert all(event.ancestor in self.line(parent) for parent in event.parents)
            self.merges -= set(event.parents)
        else:
            assert event.ancestor is None

    def line(self, name: str) -> set[str]:
        above = self.actions[self.offspring[name].action].parents if name != ROOT else ()
        return {name}.union(*(self.line(parent) for parent in above))

    def take_ImplementationSubmitted(self, event: ImplementationSubmitted) -> None:
        action = self.open[event.action]
        assert event.action not in self.made
        assert event.implementation == f"i{len(self.offspring) + 1:04d}"
        mine = {region.name: region for region in event.regions}
        for parent in action.parents:
            theirs = self.regions[parent]
            for name in mine.keys() | theirs.keys():
                if mine.get(name) != theirs.get(name) and action.scope != "joint":
                    reached = {path for side in (mine, theirs) if name in side for path in side[name].paths}
                    assert reached == {action.scope}
        self.regions[event.implementation] = mine
        self.offspring[event.implementation] = event
        self.made[event.action] = event.implementation
        self.seen[event.implementation] = self.clock
        self.failing_edits = 0

    def take_EditFailed(self, event: EditFailed) -> None:
        assert event.action not in self.made
        opportunity = self.open.pop(event.action).opportunity
        self.failing_edits += 1
        self.returns[opportunity] = self.returns.get(opportunity, 0) + 1
        if self.returns[opportunity] <= 2:
            self.consumed.remove(opportunity)
            self.pending.add(opportunity)

    def take_ActionDropped(self, event: ActionDropped) -> None:
        opportunity = self.open.pop(event.action).opportunity
        self.consumed.remove(opportunity)
        self.pending.add(opportunity)

    # --- audit

    def take_AuditCompleted(self, event: AuditCompleted) -> None:
        name = event.implementation
        if event.action is None:
            assert name in self.due
            assert name == ROOT or ROOT not in self.due
        else:
            assert event.action in self.open
            assert self.made[event.action] == name
        if isinstance(event.verdict, Infrastructure):
            self.faults[name] = self.faults.get(name, 0) + 1
            return
        self.due.discard(name)
        self.seen[name] = self.clock
        if event.action is not None:
            del self.open[event.action]
            self.kappa += 1
            self.audits += 1
        if event.verdict is not Correctness.VERIFIED:
            self.failed.add(name)
            self.verified.discard(name)
            for members in (self.frontier, self.archive, self.merges, self.unpromoted):
                members.discard(name)
            return
        assert all(check.passed for check in event.checks)
        assert event.latencies_s.keys() == LIMITS.keys()
        self.verified.add(name)
        self.failed.discard(name)
        if name not in self.archive:
            self.frontier.add(name)
        if event.action is not None:
            self.undecided.add(name)
        if name != ROOT:
            assert event.performance is not None
            assert event.measurement is not None
            self.measured(name, event.performance, event.measurement)

    def take_TimingCompleted(self, event: TimingCompleted) -> None:
        assert event.measurement is not None
        assert event.implementation in self.unpromoted
        self.seen[event.implementation] = self.clock
        self.measured(event.implementation, event.performance, event.measurement)

    def measured(self, name: str, performance: Performance, found: Measurement) -> None:
        over = any(bound > LIMITS[workload] for workload, bound in found.root_upper_bound_ratios.items())
        assert found.root_ratios.keys() == found.root_upper_bound_ratios.keys()
        assert found.incumbent in self.crowned - {name}
        if found.confirmation is not None:
            self.confirmations += 1
            assert found.confirmation == self.confirmations
        if performance is Performance.OVER_LIMIT:
            assert over
        self.unpromoted.discard(name)
        if performance is Performance.PROMOTABLE:
            assert self.a_win(found)
            assert not over
            self.unpromoted.add(name)

    def a_win(self, found: Measurement) -> bool:
        k, alpha = found.confirmation, found.alpha
        return (
            k is not None
            and alpha is not None
            and alpha <= 0.05 / (k * (k + 1)) + 1e-12
            and max(0.005, 3 * found.standard_error_ratio) <= found.delta_ratio + 1e-9
            and found.ratio
            <= found.upper_bound_ratio
            < 1 - found.delta_ratio * (1 if found.delta_ratio < 0.0081 else 2)
            and found.root_ratios.keys() == LIMITS.keys()
        )

    def take_ImplementationPromoted(self, event: ImplementationPromoted) -> None:
        assert event.replaces == self.best
        assert event.implementation in self.frontier & self.verified & self.unpromoted
        self.unpromoted.remove(event.implementation)
        self.crown(event.implementation)
        self.kappa = 0

    # --- lineage

    def take_BranchContinued(self, event: BranchContinued) -> None:
        assert event.implementation in self.frontier & self.verified
        if event.opportunity is None:
            assert event.implementation == self.best
        else:
            assert event.implementation in self.opportunities[event.opportunity].parents
            assert event.opportunity not in self.withdrawn
        self.undecided.discard(event.implementation)

    def take_BranchDeferred(self, event: BranchDeferred) -> None:
        assert event.implementation in self.frontier & self.verified
        self.merges.add(event.implementation)
        self.undecided.discard(event.implementation)

    def take_BranchArchived(self, event: BranchArchived) -> None:
        assert event.implementation in self.frontier & self.verified
        self.set_aside(event.implementation)

    def set_aside(self, name: str) -> None:
        assert name != self.best
        assert name not in self.unpromoted
        self.undecided.discard(name)
        if name in self.frontier:
            self.frontier.remove(name)
            self.merges.discard(name)
            self.archive.add(name)
            self.archived_at[name] = self.clock

    def take_BranchReactivated(self, event: BranchReactivated) -> None:
        assert self.running
        assert event.implementation in self.archive & self.verified
        assert self.seen[event.because] > self.archived_at[event.implementation]
        self.archive.remove(event.implementation)
        self.frontier.add(event.implementation)

    def take_BranchAbandoned(self, event: BranchAbandoned) -> None:
        assert self.running
        falsified = {name for name in self.pending if event.mechanism in self.opportunities[name].mechanisms}
        assert set(event.withdrawn) == falsified
        self.pending -= falsified
        self.withdrawn |= falsified
        for name in event.implementations:
            assert name in self.verified
            assert event.mechanism in self.offspring[name].mechanisms
            self.set_aside(name)

    # --- model calls

    def take_ModelRequested(self, event: ModelRequested) -> None:
        assert self.running
        assert event.request not in self.requests
        self.requests.add(event.request)
        self.reserved[event.request] = event.reserved_tokens
        assert self.policy.tokens is None or self.tokens + sum(self.reserved.values()) <= self.policy.tokens

    def take_ModelCalled(self, event: ModelCalled) -> None:
        del self.reserved[event.request]
        self.tokens += event.input_tokens + event.output_tokens


# --- the machine ---------------------------------------------------------------------------------------------------

VERDICTS: list[Correctness | Infrastructure] = [
    *[Correctness.VERIFIED] * 6,
    Correctness.DISAGREEMENT,
    Correctness.CRASHED,
    Infrastructure.DEVICE_FAULT,
]
PERFORMANCES = [*[Performance.PROMOTABLE] * 4, *Performance]
WRONG: list[dict[str, Any]] = [
    {"delta_ratio": 0.009, "upper_bound_ratio": 0.98},
    {"delta_ratio": 0.004},
    {"standard_error_ratio": 0.0025},
    {"ratio": 0.99, "upper_bound_ratio": 0.997},
    {"alpha": 0.03},
    slowed(1.05, 1.15),
    slowed(workloads=["prefill"]),
    slowed(workloads=["prefill", "decode", "other"]),
    {"root_ratios": {}},
]
TEXTS = [regions("n", "r", "r"), regions("r", "n", "r"), regions("n", "n", "r"), regions("n", "n", "n"), regions()]
MECHANISMS = ["tile", "simd"]
UNCHANGED_BY_A_FORK = {
    "kappa", "confirmations", "frontier", "archive", "merge_list",
    "actions", "attempts", "requests_used", "audited_count", "verified_count", "failed_count", "promoted_count",
}  # fmt: skip
UNCHANGED_UNLESS_STALE = {
    "best",
    "best_objective_s",
    "speedup_ratio",
    "undecided_branches",
    "root_latencies_s",
    "root_objective_s",
    "baselines",
}


DICE = st.randoms(use_true_random=True)


def mostly(dice: Random, good: Sequence[Any], bad: Sequence[Any]) -> Any:
    """One of the good ones nine times out of ten, where there are any."""
    return dice.choice(good if good and (not bad or dice.random() < 0.9) else bad)


def some(dice: Random, least: int, good: Sequence[Any], bad: Sequence[Any]) -> list[Any]:
    """Up to two of them, mostly of the good ones."""
    return [mostly(dice, good, bad) for _ in range(dice.choice([least, 1, 1, 2]))]


class Commands(RuleBasedStateMachine):
    """Random commands, valid and invalid, on one campaign and its forks."""

    @initialize(
        kappa=st.integers(2, 5),
        parallel=st.integers(1, 3),
        edits=st.integers(2, 4),
        audits=st.sampled_from([None, None, 6]),
        tokens=st.sampled_from([None, 100]),
        dice=DICE,
    )
    def open(self, kappa: int, parallel: int, edits: int, audits: int | None, tokens: int | None, dice: Random) -> None:
        """A campaign that may have come some way already."""
        self.log: list[Recorded] = []
        self.state, self.recount, self.batches = State(), Recount(), []  # type: ignore[var-annotated]
        self.policy: dict[str, Any] = {
            "kappa": kappa,
            "parallel": parallel,
            "edits_failing": edits,
            "audits": audits,
            "tokens": tokens,
        }
        self.send(decider.open_campaign, opened(**self.policy))
        if dice.random() < 0.9:
            self.send(decider.complete_root_audit, root_audit())
            self.work(dice)

    def send(self, verb: Callable[..., Batch], *wanted: Any, campaign: str = "", **options: Any) -> bool:
        """Whether the decider allowed it; then it is judged and folded."""
        try:
            batch = verb(self.state, *wanted, **options)
        except RuleBroken:
            return False
        self.append(batch, campaign or self.state.campaign or "c0")
        return True

    def append(self, batch: Batch, campaign: str) -> None:
        if not batch:
            return
        self.recount.take(batch)
        self.batches.append(batch)
        for item in recorded(one_append(batch), campaign, self.log[-1] if self.log else None):
            self.log.append(item)
            evolve(self.state, item)

    def known(self) -> list[str]:
        return list(self.state.implementations)

    # --- a search as its agents drive it

    @rule(dice=DICE)
    def work(self, dice: Random) -> None:
        """A few steps that mostly hold to the rules, so that long searches come about."""
        for _ in range(dice.randint(2, 12)):
            self.settle(dice)
            while len(self.state.open_actions) < self.policy["parallel"] and dice.random() < 0.7:
                self.try_something(dice, dice.choice(MECHANISMS), dice.choice(["joint", "joint", "full"]))
                dice.choice([self.merge, self.fail_an_edit, self.leave_it, self.leave_it])(dice)
            while self.state.open_actions and dice.random() < 0.6:
                self.finish_audit(dice)

    @rule(dice=DICE)
    def work_on(self, dice: Random) -> None:
        """The same again: most of what happens is a search."""
        self.work(dice)

    @rule(dice=DICE, move=st.sampled_from(["same", "contract", "environment"]))
    def stop_and_go_on_by_fork(self, dice: Random, move: str) -> None:
        """A user stops it, what runs may end, and a child goes on."""
        if dice.random() < 0.7:
            self.send(decider.stop, StopReason.USER)
            while self.state.open_actions and dice.random() < 0.7:
                self.finish_audit(dice)
        self.fork(dice, move, True)
        while self.state.stale and dice.random() < 0.9:
            self.audit_again(dice, dice.choice(VERDICTS))
        self.work(dice)

    def scoped_text(self, dice: Random, parent: str) -> tuple[Region, ...]:
        """The parent's regions, now and then with one that claims both paths all at once."""
        wide = Region(name="full_loop", paths=("full", "decode"), digest="wide")
        theirs = self.recount.regions[parent]
        return tuple((theirs | ({"full_loop": wide} if dice.random() < 0.1 else {})).values())

    def leave_it(self, dice: Random) -> None:
        """Nothing besides."""

    def merge(self, dice: Random) -> None:
        parents = [*self.state.merge_list, *self.state.frontier][:2]
        opportunity, action = self.state.next_opportunity, self.state.next_action
        ancestor = mostly(dice, [ROOT], self.known())
        if self.send(decider.raise_opportunities, [raised(opportunity, *parents)]):
            self.send(decider.propose_action, proposed(action, opportunity, *parents, ancestor=ancestor))

    def fail_an_edit(self, dice: Random) -> None:
        action = self.state.next_action
        for opportunity in [*self.state.pending][-1:]:
            scope = self.state.opportunities[opportunity].scope
            if self.send(decider.propose_action, proposed(action, opportunity, scope=scope)):
                self.send(decider.fail_edit, action, "no match")

    def settle(self, dice: Random) -> None:
        if self.state.stale:
            self.audit_again(dice, dice.choice(VERDICTS))
        if self.state.retimings and dice.random() < 0.5:
            self.time_again(dice)
        if self.state.undecided_branches:
            dice.choice([self.archive, self.defer, self.continue_it])(dice)
        due = decider.due_stop(self.state)
        if due is not None and (due is not StopReason.OPPORTUNITIES_EXHAUSTED or dice.random() < 0.03):
            assert self.send(decider.stop, due)

    # --- search

    @rule(dice=DICE, mechanism=st.sampled_from(MECHANISMS), scope=st.sampled_from(["joint", "joint", "full"]))
    def try_something(self, dice: Random, mechanism: str, scope: Any) -> None:
        """Everything from the opportunity to the offspring, as far as the rules let it."""
        parent = mostly(dice, [*self.state.frontier], self.known())
        opportunity, action = self.state.next_opportunity, self.state.next_action
        implementation = self.state.next_implementation
        text = self.scoped_text(dice, parent) if scope == "full" else None
        if (
            self.send(decider.raise_opportunities, [raised(opportunity, parent, mechanism=mechanism, scope=scope)])
            and self.send(decider.propose_action, proposed(action, opportunity, parent, scope=scope))
            and mostly(dice, [True], [False])
        ):
            event = submitted(action, implementation, text, (mechanism,))
            self.send(decider.submit_implementation, event)

    @rule(dice=DICE, mechanism=st.sampled_from(MECHANISMS), shift=st.sampled_from([0, 0, 0, 0, 1]))
    def raise_opportunity(self, dice: Random, mechanism: str, shift: int) -> None:
        parents = some(dice, 0, [*self.state.frontier], [*self.known(), *BOGUS])
        name = f"o{len(self.state.opportunities) + 1 + shift:04d}"
        scope: Any = dice.choice(["joint", "full", "decode"])
        self.send(decider.raise_opportunities, [raised(name, *parents, mechanism=mechanism, scope=scope)])

    @rule(dice=DICE)
    def withdraw(self, dice: Random) -> None:
        name = mostly(dice, [*self.state.pending], [*self.state.opportunities, *BOGUS])
        self.send(decider.withdraw_opportunity, name, "no use")

    @rule(dice=DICE, shift=st.sampled_from([0, 0, 0, 0, 1]))
    def propose(self, dice: Random, shift: int) -> None:
        opportunity = mostly(dice, [*self.state.pending], [*self.state.opportunities, *BOGUS])
        parents = some(dice, 1, [*self.state.frontier], self.known())
        ancestor = mostly(dice, [ROOT], [None, *self.known()]) if len(parents) > 1 else mostly(dice, [None], [ROOT])
        known = self.state.opportunities.get(opportunity)
        scope = mostly(dice, [known.scope if known else "joint"], ["full"])
        name = f"a{len(self.state.actions) + 1 + shift:04d}"
        self.send(decider.propose_action, proposed(name, opportunity, *parents, ancestor=ancestor, scope=scope))

    @rule(
        dice=DICE,
        mechanism=st.sampled_from(MECHANISMS),
        text=st.sampled_from(TEXTS),
        shift=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def submit(self, dice: Random, mechanism: str, text: tuple[Region, ...], shift: int) -> None:
        action = mostly(dice, [*self.state.open_actions], [*self.state.actions, *BOGUS])
        name = f"i{len(self.state.implementations) + shift:04d}"
        self.send(decider.submit_implementation, submitted(action, name, text, (mechanism,)))

    @rule(dice=DICE, scope=st.sampled_from(["joint", "joint", "full"]), shift=st.sampled_from([0, 0, 0, 0, 1]))
    def hand_in(self, dice: Random, scope: Any, shift: int) -> None:
        """A whole offspring from outside, at any time."""
        parents = some(dice, 1, [*self.state.frontier], self.known())
        opportunity, action = self.state.next_opportunity, f"a{len(self.state.actions) + 1 + shift:04d}"
        ancestor = ROOT if len(parents) > 1 else None
        known = [parent for parent in parents if parent in self.recount.regions]
        text = self.scoped_text(dice, known[0]) if scope == "full" and known else None
        self.send(
            decider.propose_offspring,
            raised(opportunity, *parents, mechanism=f"outside_{action}", scope=scope),
            proposed(action, opportunity, *parents, ancestor=ancestor, scope=scope),
            submitted(action, self.state.next_implementation, text, (f"outside_{action}",)),
        )

    @rule(dice=DICE, drop=st.sampled_from([False, False, False, False, True]))
    def give_up(self, dice: Random, drop: bool) -> None:
        action = mostly(dice, [*self.state.open_actions], [*self.state.actions, *BOGUS])
        if drop:
            self.send(decider.drop_action, action, dice.choice(list(DropReason)))
        else:
            self.send(decider.fail_edit, action, "no match")

    # --- audit

    def finding(self, dice: Random) -> tuple[Performance, Measurement]:
        performance = dice.choice(PERFORMANCES)
        k = mostly(dice, [self.state.confirmations + 1], [None, self.state.confirmations, 1])
        if k == 0:
            k = 2
        best = self.state.best or ROOT
        incumbent = mostly(dice, [best, best, *sorted(self.recount.crowned)], [*self.known(), "i0099"])
        changes: dict[str, Any] = dice.choice(WRONG) if dice.random() < 0.25 else {}
        if performance is Performance.OVER_LIMIT and k is not None:
            changes = slowed(1.3)
        return performance, measured(k, incumbent, **changes)

    def result(self, dice: Random, name: str, action: str | None) -> AuditCompleted:
        verdict = dice.choice(VERDICTS)
        if verdict is not Correctness.VERIFIED:
            return failing(name, action, verdict)
        performance, found = self.finding(dice)
        flaw = mostly(
            dice, [{}, {}], [{"failures": FAILED_CHECKS}, {"latencies_s": {"prefill": 0.001}}, {"environment": "x"}]
        )
        return audited(name, action, performance, found, **flaw)

    @precondition(lambda self: self.state.open_actions)
    @rule(dice=DICE)
    def finish_audit(self, dice: Random) -> None:
        waiting = [name for name in self.state.open_actions if self.state.actions[name].implementation is not None]
        action = mostly(dice, waiting, [*self.state.actions])
        name = mostly(dice, [self.state.actions[action].implementation or "i0099"], self.known())
        self.send(decider.complete_audit, self.result(dice, name, action))

    @rule(dice=DICE, verdict=st.sampled_from(VERDICTS))
    def audit_again(self, dice: Random, verdict: Any) -> None:
        if ROOT in self.state.stale and mostly(dice, [True], [False]):
            self.send(decider.complete_root_audit, root_audit(verdict, self.state.environment_digest))
            return
        name = mostly(dice, [*self.state.stale], self.known())
        audit = self.result(dice, name, None).model_copy(update={"environment": self.state.environment_digest})
        self.send(decider.complete_audit, audit)

    @rule(dice=DICE)
    def time_again(self, dice: Random) -> None:
        name = mostly(dice, [*self.state.retimings], self.known())
        performance, found = self.finding(dice)
        event = timed(name, performance, found)
        self.send(decider.complete_timing, event.model_copy(update={"environment": self.state.environment_digest}))

    # --- lineage

    @rule(dice=DICE)
    def archive(self, dice: Random) -> None:
        waiting = [*self.state.undecided_branches, *self.state.retimings]
        self.send(decider.archive_branch, mostly(dice, waiting, [*self.state.frontier, *BOGUS]), "because")

    @rule(dice=DICE)
    def defer(self, dice: Random) -> None:
        name = mostly(dice, [*self.state.undecided_branches], [*self.state.frontier, *BOGUS])
        self.send(decider.defer_branch, name, "because")

    @rule(dice=DICE)
    def continue_it(self, dice: Random) -> None:
        name = mostly(dice, [*self.state.undecided_branches], self.known())
        follow_ups = [key for key, item in self.state.opportunities.items() if name in item.parents]
        opportunity = mostly(dice, follow_ups, [None, *self.state.opportunities, "o0099"])
        self.send(decider.continue_branch, name, opportunity, "because")

    @rule(dice=DICE)
    def reactivate(self, dice: Random) -> None:
        name = mostly(dice, [*self.state.archive], self.known())
        cited = [*self.known(), *self.state.opportunities, *self.state.actions, "x"]
        self.send(decider.reactivate_branch, name, dice.choice(cited[-9:]), "because")

    @rule(dice=DICE, mechanism=st.sampled_from([*MECHANISMS, "other"]))
    def abandon(self, dice: Random, mechanism: str) -> None:
        members = [name for name, node in self.state.implementations.items() if mechanism in node.mechanisms]
        names = some(dice, 0, members, [*self.known(), *BOGUS])
        self.send(decider.abandon_branch, mechanism, names, "because")

    # --- a campaign's life

    @rule(reason=st.sampled_from(list(StopReason)), sure=st.booleans())
    def stop(self, reason: StopReason, sure: bool) -> None:
        if reason is not StopReason.USER or (sure and self.state.position % 4 == 0):
            self.send(decider.stop, reason)

    @rule()
    def pause(self) -> None:
        self.send(decider.pause, "a pause")

    @rule(elsewhere=st.sampled_from([False, False, False, False, True]))
    def resume(self, elsewhere: bool) -> None:
        here = self.state.environment == ENVIRONMENT
        self.send(decider.resume, ELSEWHERE if elsewhere or not here else ENVIRONMENT)

    @rule(text=st.sampled_from(["a word", " "]))
    def note(self, text: str) -> None:
        assert self.send(decider.note, text) == bool(text.strip())
        assert not self.send(decider.open_campaign, opened())

    @rule(number=st.integers(1, 9), tokens=st.sampled_from([10, 40, 90]), dice=DICE)
    def call_a_model(self, number: int, tokens: int, dice: Random) -> None:
        request = ModelRequested(
            request=f"r{number}", agent="editor", action=mostly(dice, [None], [*self.state.actions, "a0099"]),
            model="m", prompt="p", attempt=number, reserved_tokens=tokens, reserved_usd=0.0,
        )  # fmt: skip
        self.send(decider.request_model, request)
        answer = mostly(dice, [*self.state.model_requests, None], ["r1", "r99"])
        if answer is not None:
            call = ModelCalled(
                request=answer, agent="editor", model="m", reply=None, input_tokens=5, output_tokens=5, cost_usd=0.0,
                elapsed_s=1.0, attempt=int(answer[1:]), outcome="answered",
            )  # fmt: skip
            self.send(decider.record_model_call, call)

    @rule(
        dice=DICE, move=st.sampled_from(["same", "same", "same", "contract", "environment"]), raise_kappa=st.booleans()
    )
    def fork(self, dice: Random, move: str, raise_kappa: bool) -> None:
        """Go on in a child, from the end of any append."""
        if self.state.status != "stopped" and dice.random() < 0.7:
            return
        end = mostly(dice, [len(self.batches)], list(range(1, len(self.batches) + 1)))
        position = sum(len(batch) for batch in self.batches[:end])
        parent = fold(self.log[:position])
        policy = self.policy | {"kappa": self.policy["kappa"] + (2 if raise_kappa else 0)}
        wanted = other_contract(**policy) if move == "contract" else parent.specified().model_copy(
            update={"policy": opened(**policy).specification.policy}
        )  # fmt: skip
        environment = ELSEWHERE if move == "environment" else parent.environment
        try:
            batch = decider.fork(parent, "hash", wanted, environment, DIGESTS)  # type: ignore[arg-type]
        except RuleBroken:
            assert parent.kappa >= wanted.policy.kappa
            return
        self.policy = policy
        self.log, self.batches = self.log[:position], self.batches[:end]
        self.state, self.recount = fold(self.log), Recount.replay(self.batches)
        self.append(batch, f"{parent.campaign}.{end}")
        self.check_fork(parent, batch)

    def check_fork(self, parent: State, batch: Batch) -> None:
        forked = batch[0]
        assert isinstance(forked, CampaignForked)
        same = UNCHANGED_BY_A_FORK | (set() if forked.stale else UNCHANGED_UNLESS_STALE)
        for name in same:
            assert getattr(self.state, name) == getattr(parent, name), name
        assert not self.state.open_actions
        assert set(self.state.pending) == set(parent.pending) | {
            parent.actions[a].opportunity for a in parent.open_actions
        }
        assert self.state.spent == type(self.state.spent)()

    # --- what holds after every step

    @invariant()
    def the_fold_agrees_with_the_recount(self) -> None:
        state, recount = self.state, self.recount
        assert (state.kappa, state.confirmations) == (recount.kappa, recount.confirmations)
        assert (set(state.frontier), set(state.archive)) == (recount.frontier, recount.archive)
        assert (set(state.merge_list), set(state.open_actions)) == (recount.merges, set(recount.open))
        assert (set(state.pending), set(state.stale)) == (recount.pending, recount.due)
        assert set(state.undecided_branches) == recount.undecided
        assert set(state.retimings) | set(state.unsettled) == recount.unpromoted
        assert not (state.retimings if recount.stopped else state.unsettled)
        assert {name for name, node in state.implementations.items() if node.verified} == recount.verified
        assert (state.status == "running") == recount.running
        assert (state.status == "stopped", state.status == "paused") == (
            recount.stopped,
            recount.paused and not recount.stopped,
        )
        assert state.spent.reserved_tokens == sum(recount.reserved.values())
        assert (state.spent.tokens, state.spent.audits) == (recount.tokens, recount.audits)

    @invariant()
    def sets_are_apart_and_complete(self) -> None:
        state, recount = self.state, self.recount
        assert not set(state.frontier) & set(state.archive)
        assert all(
            state.implementations[name].verdict is Correctness.VERIFIED for name in state.frontier | state.archive
        )
        assert set(state.merge_list) <= set(state.frontier)
        if state.best is not None:
            assert state.best in state.frontier
            assert state.implementations[state.best].promoted
        status = {name: item.status for name, item in state.opportunities.items()}
        assert {name for name in status if status[name] == "pending"} == recount.pending
        assert {name for name in status if status[name] == "consumed"} == recount.consumed
        assert {name for name in status if status[name] == "withdrawn"} == recount.withdrawn
        assert all(status[state.actions[name].opportunity] == "consumed" for name in state.open_actions)
        counted = [node.verdict for node in state.implementations.values() if node.verdict is not None]
        assert state.audited_count == len(counted) == state.verified_count + state.failed_count

    def teardown(self) -> None:
        """Wherever a fold is broken off, it goes on to the same state."""
        for position in range(0, len(self.log) + 1, max(1, len(self.log) // 4)):
            resumed = fold(self.log[position:], fold(self.log[:position]))
            assert resumed == self.state
            for field in fields(State):
                value = getattr(self.state, field.name)
                if isinstance(value, dict):
                    assert list(getattr(resumed, field.name)) == list(value), f"the order of {field.name}"


TestCommands = Commands.TestCase
TestCommands.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
