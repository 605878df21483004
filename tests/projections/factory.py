"""Valid logs for tests: a story told through the decider's own verbs, by hand or by a list of numbers."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from hypothesis import strategies as st

from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.campaign import CampaignOpened
from kernelbraid.events.effects import ModelCalled, ModelRequested
from kernelbraid.events.errors import RuleBroken
from kernelbraid.events.event import Actor, Event, Recorded
from kernelbraid.events.search import ActionProposed, ImplementationSubmitted, OpportunityRaised
from kernelbraid.events.state import State, evolve, objective_s
from kernelbraid.events.values import (
    ROOT,
    Baseline,
    Contract,
    Correctness,
    Digests,
    DropReason,
    Environment,
    Infrastructure,
    Measurement,
    Performance,
    Policy,
    Region,
    Scope,
    SourceFile,
    Specification,
    StopReason,
    Workload,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT_LATENCIES_S = {"prefill_512": 0.004, "decode_512": 0.001}
WORKLOADS = (
    Workload(
        name="prefill_512", entry="forward", path="full", dtype="f32", dims={"seq": 512}, weight=1.0, limit_ratio=1.5
    ),
    Workload(
        name="decode_512",
        entry="decode",
        path="decode",
        dtype="f32",
        dims={"context": 512},
        weight=4.0,
        limit_ratio=1.5,
    ),
)
FAILURES = (Correctness.BUILD_FAILED, Correctness.CRASHED, Correctness.DISAGREEMENT, Correctness.INACCURATE)
MECHANISMS = ("simd_width", "kv_tile", "query_tile", "unroll", "pack_k", "prefetch")
SCOPES: tuple[Scope, ...] = ("full", "decode", "joint")


def digest(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return sha256(text.encode()).hexdigest()


def specification(**policy: object) -> Specification:
    """A small attention campaign's specification; keywords are policy keys."""
    contract = Contract(
        operator="attention",
        target="cpu",
        workloads=WORKLOADS,
        numerical_contract={"accumulate": "f32"},
        declaration_digest=digest("operator.toml"),
        harness_digest=digest("harness"),
        toolchain_digest=digest("gcc"),
    )
    return Specification(contract=contract, policy=Policy.model_validate(policy))


def environment(machine: str = "bench") -> Environment:
    """A made-up machine."""
    return Environment(
        machine=machine,
        cpu_model="x86-64-v3",
        simd_bits=256,
        l1_bytes=32768,
        kernel_release="6.1",
        compiler="gcc",
        compiler_version="14.2",
        flags=("-O3", "-march=native"),
        sandbox="landlock",
        harness_digest=digest("harness"),
        toolchain_digest=digest("gcc"),
    )


DIGESTS = Digests(catalogue=digest("catalogue"), templates=digest("templates"), agents=digest("agents"))


def regions(label: str = "root", paths: Iterable[str] = ("full", "decode")) -> tuple[Region, ...]:
    """One region a path; those of `paths` hold the text `label`."""
    changed = set(paths)
    return (
        Region(name="full_loop", paths=("full",), digest=digest(label if "full" in changed else "root")),
        Region(name="decode_loop", paths=("decode",), digest=digest(label if "decode" in changed else "root")),
    )


def latencies_s(speedup: float) -> dict[str, float]:
    """Every workload `speedup` times faster than the root."""
    return {name: value / speedup for name, value in ROOT_LATENCIES_S.items()}


class Story:
    """A campaign as it unfolds: each deed goes through the decider, is recorded and folded."""

    def __init__(self, campaign: str = "golden", seconds: float = 2.0) -> None:
        self.campaign = campaign
        self.seconds = seconds
        self.state = State()
        self.log: list[Recorded] = []
        self.speeds = {ROOT: 1.0}

    def record(self, actor: Actor, events: Sequence[Event]) -> None:
        """Record one append."""
        cause = self.state.position
        for index, event in enumerate(events):
            position = self.state.position + 1
            at = START + timedelta(seconds=self.seconds * (position - index))
            recorded = Recorded(self.campaign, position, at, actor, cause, (index, len(events)), event)
            self.log.append(recorded)
            evolve(self.state, recorded)

    def open(self, **policy: object) -> "Story":
        """Open the campaign."""
        opened = CampaignOpened(
            specification=specification(**policy),
            environment=environment(),
            digests=DIGESTS,
            sources=(SourceFile(name="attention.c", digest=digest("root")),),
            regions=regions(),
        )
        self.record("driver", decider.open_campaign(self.state, opened))
        return self

    def qualify(self) -> "Story":
        """The root is audited, with two baselines beside it."""
        baselines = (
            Baseline(name="fast-math", latencies_s=latencies_s(2.0)),
            Baseline(name="eight sums", latencies_s=latencies_s(3.0)),
        )
        audit = self._audit(None, ROOT, Correctness.VERIFIED, None, None)
        self.record("auditor", decider.complete_root_audit(self.state, audit, baselines))
        return self

    def begin(self, **policy: object) -> "Story":
        """Open and qualify."""
        return self.open(**policy).qualify()

    def opportunity(self, *mechanisms: str, parents: Sequence[str] = (ROOT,), scope: Scope = "joint") -> str:
        """Raise an opportunity; returns its id."""
        event = OpportunityRaised(
            opportunity=self.state.next_opportunity,
            mechanisms=mechanisms,
            parents=tuple(parents),
            scope=scope,
            workloads=tuple(ROOT_LATENCIES_S),
            evidence="text_bytes 4096",
            rationale=f"{' and '.join(mechanisms)} should pay",
            expected_gain_ratio=1.25,
        )
        self.record("planner", decider.raise_opportunities(self.state, [event]))
        return event.opportunity

    def propose(self, opportunity: str, ancestor: str | None = None) -> str:
        """Begin an action on the opportunity's parents; returns its id."""
        wanted = self.state.opportunities[opportunity]
        event = ActionProposed(
            action=self.state.next_action,
            opportunity=opportunity,
            parents=wanted.parents,
            ancestor=ancestor,
            scope=wanted.scope,
            rationale="the share of its time is large",
            numerical_risks="none: the order of sums is kept",
            falsification="less than two per cent",
            strategy="catalogue",
        )
        self.record("planner", decider.propose_action(self.state, event))
        return event.action

    def submit(self, action: str) -> str:
        """Hand an offspring in; returns its id."""
        state, wanted = self.state, self.state.actions[action]
        mechanisms = dict.fromkeys(m for parent in wanted.parents for m in state.implementations[parent].mechanisms)
        mechanisms |= dict.fromkeys(state.opportunities[wanted.opportunity].mechanisms)
        event = ImplementationSubmitted(
            action=action,
            implementation=state.next_implementation,
            sources=(SourceFile(name="attention.c", digest=digest(state.next_implementation)),),
            regions=self._regions(wanted.parents[0], wanted.scope, state.next_implementation),
            mechanisms=tuple(mechanisms),
            contract_items=("kv_order",),
        )
        self.record("editor", decider.submit_implementation(state, event))
        return event.implementation

    def _regions(self, parent: str, scope: Scope, label: str) -> tuple[Region, ...]:
        return tuple(
            region.model_copy(update={"digest": digest(label)})
            if scope == "joint" or region.paths == (scope,)
            else region
            for region in self.state.implementations[parent].regions
        )

    def fail(self, action: str, verdict: Correctness | Infrastructure = Correctness.DISAGREEMENT) -> None:
        """The audit of the action's offspring ends without a measurement."""
        implementation = self.state.actions[action].implementation
        assert implementation is not None
        audit = self._audit(action, implementation, verdict, None, None)
        self.record("auditor", decider.complete_audit(self.state, audit))

    def audit(self, action: str, speedup: float, incumbent: str | None = None, *, over_limit: bool = False) -> str:
        """The action's offspring is verified, `speedup` times faster than the root; returns its id."""
        implementation = self.state.actions[action].implementation
        assert implementation is not None
        self.speeds[implementation] = speedup
        performance, measurement = self.measure(speedup, incumbent, over_limit=over_limit)
        audit = self._audit(action, implementation, Correctness.VERIFIED, performance, measurement)
        self.record("auditor", decider.complete_audit(self.state, audit))
        return implementation

    def time(self, implementation: str, speedup: float) -> None:
        """A winner is timed again, against today's best."""
        performance, measurement = self.measure(speedup)
        timing = TimingCompleted(
            implementation=implementation,
            latencies_s=latencies_s(speedup),
            performance=performance,
            measurement=measurement,
            environment=self.state.environment_digest,
            elapsed_s=1.5,
        )
        self.speeds[implementation] = speedup
        self.record("auditor", decider.complete_timing(self.state, timing))

    def measure(
        self, speedup: float, incumbent: str | None = None, *, over_limit: bool = False
    ) -> tuple[Performance, Measurement]:
        """The summary of a comparison with the incumbent, today's best unless given."""
        against = incumbent or self.state.best or ROOT
        ratio = self.speeds[against] / speedup
        confirmed = ratio < 0.98
        performance = Performance.PROMOTABLE if confirmed else Performance.NO_GAIN
        worst = 2.0 if over_limit else 1 / speedup
        measurement = Measurement(
            incumbent=against,
            ratio=ratio,
            upper_bound_ratio=ratio * 1.002,
            delta_ratio=0.005,
            standard_error_ratio=0.001,
            alpha=decider.confirmation_alpha(self.state.confirmations + 1) if confirmed else None,
            confirmation=self.state.confirmations + 1 if confirmed else None,
            speedup_ratio=speedup if confirmed else None,
            objective_s=objective_s(self.state.specified(), latencies_s(speedup)),
            root_ratios=dict.fromkeys(ROOT_LATENCIES_S, worst),
            root_upper_bound_ratios=dict.fromkeys(ROOT_LATENCIES_S, worst),
            blocks=(digest(f"blocks {speedup}"),),
        )
        return (Performance.OVER_LIMIT if over_limit else performance), measurement

    def _audit(
        self,
        action: str | None,
        implementation: str,
        verdict: Correctness | Infrastructure,
        performance: Performance | None,
        measurement: Measurement | None,
    ) -> AuditCompleted:
        verified = verdict is Correctness.VERIFIED
        speedup = self.speeds.get(implementation, 1.0)
        return AuditCompleted(
            action=action,
            implementation=implementation,
            verdict=verdict,
            evidence="" if verified else "row 17 differs",
            cases={"agreement": 128, "accuracy": 24},
            failures={} if verified else {"agreement": "row 17 differs"},
            latencies_s=latencies_s(speedup) if verified else {},
            performance=performance,
            measurement=measurement,
            resources={"text_bytes": 4096.0},
            artifact=digest(f"artifact {implementation}"),
            log=digest("log"),
            environment=self.state.environment_digest,
            build_s=0.5,
            check_s=0.5,
            timing_s=1.5,
        )

    def offspring(self, mechanism: str, speedup: float, parent: str = ROOT, scope: Scope = "joint") -> str:
        """One whole iteration up to a verified offspring; returns its id."""
        action = self.propose(self.opportunity(mechanism, parents=(parent,), scope=scope))
        self.submit(action)
        return self.audit(action, speedup)

    def merge(self, parents: Sequence[str], ancestor: str, speedup: float, *mechanisms: str) -> str:
        """Merge verified implementations; returns the offspring's id."""
        action = self.propose(self.opportunity(*mechanisms, parents=parents), ancestor=ancestor)
        self.submit(action)
        return self.audit(action, speedup)

    def call_model(self, tokens: int = 300, cost_usd: float = 0.02) -> None:
        """One model call, requested and answered."""
        request = f"m{self.state.position:04d}"
        asked = ModelRequested(
            request=request,
            agent="editor",
            action=None,
            model="small-model",
            prompt=digest("prompt"),
            attempt=1,
            reserved_tokens=4000,
            reserved_usd=0.1,
        )
        self.record("editor", decider.request_model(self.state, asked))
        called = ModelCalled(
            request=request,
            agent="editor",
            model="small-model",
            reply=digest("reply"),
            input_tokens=tokens,
            output_tokens=tokens // 3,
            cost_usd=cost_usd,
            elapsed_s=0.8,
            attempt=1,
            outcome="answered",
        )
        self.record("editor", decider.record_model_call(self.state, called))

    def fork(self, campaign: str, *, machine: str = "bench", **policy: object) -> "Story":
        """Go on under another name from here."""
        events = decider.fork(self.state, digest("event"), specification(**policy), environment(machine), DIGESTS)
        self.campaign = campaign
        self.record("user", events)
        return self


def golden_story() -> Story:
    """A whole small search: every verb at least once, two promotions, a merge, a failure, a fork at the end of none."""
    story = Story().begin(seed=7, audits=12, kappa=4, parallel=2, tokens=100_000, cost_usd=5.0, wall_s=600.0)
    state = story.state
    story.record("user", decider.note(state, "first light"))
    simd = story.offspring("simd_width", 2.0)
    story.record("brancher", decider.continue_branch(state, simd, None, "the best"))
    full = story.offspring("query_tile", 1.9, simd, "full")
    story.record("brancher", decider.defer_branch(state, full, "waits for a decode-only sibling"))
    decode = story.offspring("kv_tile", 1.95, simd, "decode")
    story.record("brancher", decider.defer_branch(state, decode, "waits for a full-only sibling"))
    merged = story.merge((full, decode), simd, 3.0, "query_tile", "kv_tile")
    story.record("brancher", decider.continue_branch(state, merged, None, "the best"))
    story.record("brancher", decider.archive_branch(state, full, "merged"))
    story.call_model()
    broken = story.propose(story.opportunity("prefetch", parents=(merged,)))
    story.submit(broken)
    story.fail(broken)
    spare = story.opportunity("unroll", parents=(merged,))
    story.record("editor", decider.fail_edit(state, story.propose(spare), "the region was not found"))
    story.record("planner", decider.withdraw_opportunity(state, spare, "cannot be written"))
    story.record("brancher", decider.reactivate_branch(state, full, spare, "another way on"))
    story.record("brancher", decider.abandon_branch(state, "query_tile", (full,), "no gain alone"))
    story.record("driver", decider.pause(state, "by hand"))
    story.record("driver", decider.resume(state, environment(), "by hand"))
    _two_winners(story, merged)
    dropped = story.propose(story.opportunity("pack_k", parents=(merged,)))
    story.record("driver", decider.drop_action(state, dropped, DropReason.STOPPED))
    story.record("user", decider.stop(state, StopReason.USER, "enough"))
    return story


def _two_winners(story: Story, parent: str) -> None:
    """Both are measured against the same best; the second is timed again."""
    first = story.propose(story.opportunity("unroll", parents=(parent,)))
    second = story.propose(story.opportunity("prefetch", parents=(parent,)))
    story.submit(first)
    story.submit(second)
    winner = story.audit(first, 3.3)
    loser = story.audit(second, 3.2, incumbent=parent)
    story.time(loser, 3.2)
    story.record("brancher", decider.continue_branch(story.state, winner, None, "the best"))
    story.record("brancher", decider.archive_branch(story.state, loser, "beaten"))


# --- random stories ------------------------------------------------------------------------------------------------


def play(numbers: Sequence[int], campaign: str = "random") -> Story:
    """A valid story made of numbers: each picks a deed and its subject; deeds that the rules refuse do not happen."""
    story = Story(campaign).begin(kappa=6, parallel=3, audits=40)
    for number in numbers:
        deed = DEEDS[number % len(DEEDS)]
        try:
            deed(story, number // len(DEEDS))
        except RuleBroken:
            continue
    return story


def _pick(members: Iterable[str], number: int) -> str:
    choices = list(members)
    if not choices:
        raise RuleBroken("nothing to choose from")
    return choices[number % len(choices)]


def _raise(story: Story, number: int) -> None:
    parent = _pick(story.state.implementations, number)
    story.opportunity(MECHANISMS[number % 6], parents=(parent,), scope=SCOPES[number % 3])


def _raise_merge(story: Story, number: int) -> None:
    first, second = _pick(story.state.frontier, number), _pick(story.state.frontier, number // 3)
    story.opportunity("kv_tile", "query_tile", parents=(first, second))


def _propose(story: Story, number: int) -> None:
    opportunity = _pick(story.state.pending, number)
    merge = len(story.state.opportunities[opportunity].parents) > 1
    story.propose(opportunity, ancestor=ROOT if merge else None)


def _submit(story: Story, number: int) -> None:
    story.submit(_pick(_without_offspring(story), number))


def _without_offspring(story: Story) -> list[str]:
    return [name for name in story.state.open_actions if story.state.actions[name].implementation is None]


def _under_audit(story: Story) -> list[str]:
    return [name for name in story.state.open_actions if story.state.actions[name].implementation is not None]


def _audit(story: Story, number: int) -> None:
    action = _pick(_under_audit(story), number)
    incumbent = story.state.best if number % 3 else ROOT
    story.audit(action, 0.8 + (number % 40) / 10, incumbent, over_limit=number % 7 == 0)


def _fail(story: Story, number: int) -> None:
    verdicts = (*FAILURES, Infrastructure.DEVICE_FAULT)
    story.fail(_pick(_under_audit(story), number), verdicts[number % len(verdicts)])


def _time(story: Story, number: int) -> None:
    implementation = _pick(story.state.retimings, number)
    story.time(implementation, story.speeds[implementation])


def _fail_edit(story: Story, number: int) -> None:
    story.record("editor", decider.fail_edit(story.state, _pick(_without_offspring(story), number), "no match"))


def _withdraw(story: Story, number: int) -> None:
    story.record("planner", decider.withdraw_opportunity(story.state, _pick(story.state.pending, number), "stale"))


def _continue(story: Story, number: int) -> None:
    member = _pick(story.state.undecided_branches, number)
    follow_up = None if member == story.state.best else _pick(_follow_ups(story, member), number)
    story.record("brancher", decider.continue_branch(story.state, member, follow_up, "promising"))


def _follow_ups(story: Story, member: str) -> list[str]:
    return [item.id for item in story.state.opportunities.values() if member in item.parents]


def _defer(story: Story, number: int) -> None:
    member = _pick(story.state.frontier, number)
    story.record("brancher", decider.defer_branch(story.state, member, "to be merged"))


def _archive(story: Story, number: int) -> None:
    member = _pick(story.state.frontier, number)
    story.record("brancher", decider.archive_branch(story.state, member, "set aside"))


def _reactivate(story: Story, number: int) -> None:
    member, because = _pick(story.state.archive, number), _pick(reversed(story.state.opportunities), 0)
    story.record("brancher", decider.reactivate_branch(story.state, member, because, "new evidence"))


def _abandon(story: Story, number: int) -> None:
    mechanism = MECHANISMS[number % 6]
    nodes = story.state.implementations.values()
    members = [
        node.id for node in nodes if node.verified and mechanism in node.mechanisms and node.id != story.state.best
    ]
    story.record("brancher", decider.abandon_branch(story.state, mechanism, members, "falsified"))


def _pause(story: Story, number: int) -> None:
    story.record("driver", decider.pause(story.state, "by hand"))


def _resume(story: Story, number: int) -> None:
    current = story.state.environment
    assert current is not None
    story.record("driver", decider.resume(story.state, current))


def _call_model(story: Story, number: int) -> None:
    story.call_model(tokens=number % 500)


def _fork(story: Story, number: int) -> None:
    if number % 4 == 0:
        story.fork(f"fork{story.state.position}", kappa=10, parallel=3, audits=40)


DEEDS = (
    *(_raise, _propose, _submit, _audit) * 5,
    _fail,
    _raise_merge,
    _time,
    _fail_edit,
    _withdraw,
    _continue,
    _continue,
    _defer,
    _archive,
    _reactivate,
    _abandon,
    _pause,
    *(_resume,) * 4,
    _call_model,
    _fork,
)

stories = st.lists(st.integers(0, 100_000), max_size=80).map(play)
"""Random valid stories; shrinking drops deeds."""
