"""Work handed in from outside: beside a driver, while a campaign is paused, in a replay, in a fork, and for real."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelbraid.agents import forking, outside, search
from kernelbraid.agents.replay import replay_strict
from kernelbraid.agents.requalify import requalify
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted
from kernelbraid.events.campaign import CampaignResumed, RootQualified
from kernelbraid.events.errors import CampaignMissing, RuleBroken
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.search import ActionDropped, ActionProposed, ImplementationSubmitted, OpportunityWithdrawn
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store, open_store
from kernelbraid.events.values import ROOT, Performance, Scope, StopReason
from kernelbraid.kernels.audit.environment import Environment as HarnessEnvironment
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.catalogue import apply, load_catalogue
from kernelbraid.kernels.operators.operator import Operator, Sources, load_operator
from tests.agents.stage import mark
from tests.campaign.toy import TOY, events_of, latency, memory, run_toy, simulated

ROOT_SOURCES = load_operator(TOY).root_sources()


@pytest.fixture
def store() -> Any:
    with memory() as opened:
        yield opened


def written(*marks: str, place: str = "element") -> Sources:
    """The toy's root with these marks, as if somebody had written it."""
    sources = ROOT_SOURCES
    for name in marks:
        sources = mark(name, place, sources)
    return sources


def hand_in(store: Store, *marks: str, parents: tuple[str, ...] = (ROOT,), scope: Scope = "joint") -> outside.HandedIn:
    """Hand the toy's root with these marks in."""
    place = "element" if scope == "joint" else scope
    return outside.propose(
        "toy", written(*marks, place=place), store=store, parents=parents, scope=scope, rationale="seen in a profile"
    )


def paused(store: Store, **policy: Any) -> None:
    """A toy campaign that somebody paused once its root had qualified."""
    run_toy(store, watch=when(RootQualified, lambda: search.pause(store, "toy")), **policy)


def when(kind: type[Event], act: Callable[[], object], times: int = 1) -> search.Watch:
    """A watch that acts at the first events of a kind."""
    left = [times]

    def watch(recorded: Recorded, state: State) -> None:
        if isinstance(recorded.event, kind) and left[0]:
            left[0] -= 1
            act()

    return watch


def resume(store: Store, **options: Any) -> None:
    search.resume("toy", store=store, harness=simulated(), **options)


def state_of(store: Store, name: str = "toy") -> State:
    return fold(store.read(name))


def agrees(store: Store, name: str = "toy") -> None:
    """Today's agents decide all of it again."""
    report = replay_strict(store, name)
    assert report.divergence is None, report.divergence


# --- while nobody drives -------------------------------------------------------------------------------------------


def test_what_is_handed_in_to_a_paused_campaign_is_audited_first_when_it_is_resumed_and_may_win(store: Store) -> None:
    # given
    paused(store)

    # when
    handed = hand_in(store, "lanes", "tree", "wide")
    assert handed.position == store.position("toy")
    resume(store)

    # then
    assert (handed.opportunity, handed.action, handed.implementation) == ("o0001", "a0001", "i0001")
    assert events_of(store, "toy", AuditCompleted)[1].implementation == "i0001"
    assert events_of(store, "toy", ImplementationPromoted)[0].implementation == "i0001"
    assert state_of(store).status == "stopped"
    agrees(store)


def test_it_is_recorded_with_its_author_its_words_and_all_its_sources(store: Store) -> None:
    # given / when
    paused(store)
    outside.propose(
        "toy",
        written("lanes"),
        store=store,
        parents=(ROOT,),
        scope="joint",
        rationale="half the loads",
        numerical_risks="another order of the sum",
        falsification="no fewer loads",
    )

    # then one append holds everything
    recorded = list(store.read("toy"))[-3:]
    assert [(item.actor, item.batch) for item in recorded] == [("user", (1, 3)), ("user", (2, 3)), ("user", (3, 3))]
    (proposed,) = events_of(store, "toy", ActionProposed)
    assert (proposed.strategy, proposed.rationale) == ("outside", "half the loads")
    assert (proposed.numerical_risks, proposed.falsification) == ("another order of the sum", "no fewer loads")
    (submitted,) = events_of(store, "toy", ImplementationSubmitted)
    assert {file.name: store.blob(file.digest).decode() for file in submitted.sources} == written("lanes")
    assert submitted.mechanisms == ("outside_a0001",)


def test_a_fault_in_it_fails_its_audit_and_the_search_goes_on(store: Store) -> None:
    # given
    paused(store)

    # when
    hand_in(store, "stream")
    resume(store)

    # then
    state = state_of(store)
    assert state.implementations["i0001"].standing == "failed"
    assert state.best not in (None, ROOT, "i0001")
    agrees(store)


def test_several_wait_in_line_and_no_more_are_in_audit_than_the_policy_has_in_flight(store: Store) -> None:
    # given a policy of one at a time
    paused(store, audits=6)
    running, most = [0], [0]

    def auditing(kind: str) -> None:
        running[0] += {"begin": 1, "end": -1}[kind]
        most[0] = max(most[0], running[0])

    # when four are handed in at once
    for names in (("lanes",), ("tree",), ("lanes", "tree"), ("pack",)):
        hand_in(store, *names)
    harness = simulated()

    def counted(operator: Any, target: str) -> Any:
        made = harness(operator, target)
        own = made.audit

        def audit(*arguments: Any) -> Any:
            auditing("begin")
            try:
                return own(*arguments)
            finally:
                auditing("end")

        made.audit = audit
        return made

    search.resume("toy", store=store, harness=counted)

    # then all were audited, in their order and one after another, and they count
    assert most == [1]
    audited = [event.implementation for event in events_of(store, "toy", AuditCompleted)[1:5]]
    assert audited == ["i0001", "i0002", "i0003", "i0004"]
    assert state_of(store).stop_reason is StopReason.BUDGET
    assert state_of(store).spent.audits == 6
    agrees(store)


def test_a_merge_by_hand_names_both_parents_and_finds_their_ancestor(store: Store) -> None:
    # given two verified offspring of different paths
    paused(store)
    hand_in(store, "full_tile", scope="full")
    hand_in(store, "decode_split", scope="decode")
    resume(store, pause_requested=after(2))

    # when
    both = mark("decode_split", "decode", written("full_tile", place="full"))
    outside.propose("toy", both, store=store, parents=("i0001", "i0002"), scope="joint", rationale="both at once")

    # then
    action = events_of(store, "toy", ActionProposed)[-1]
    assert (action.parents, action.ancestor) == (("i0001", "i0002"), ROOT)
    submitted = events_of(store, "toy", ImplementationSubmitted)[-1]
    assert submitted.mechanisms[:2] == ("outside_a0001", "outside_a0002")
    resume(store)
    agrees(store)


def after(rounds: int) -> Callable[[], str | None]:
    """Ask for a pause after so many rounds."""
    asked = [-1]

    def pause_requested() -> str | None:
        asked[0] += 1
        return "enough" if asked[0] == rounds else None

    return pause_requested


# --- beside a driver -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("moment", [RootQualified, ActionProposed, ImplementationSubmitted, AuditCompleted])
def test_beside_a_driver_it_enters_at_any_moment_and_the_log_is_decided_again(
    moment: type[Event], parallel: int, store: Store
) -> None:
    # given / when somebody hands work in while the campaign is driven
    names = iter([("lanes", "tree"), ("pack",)])
    watch = when(moment, lambda: hand_in(store, *next(names)), times=2)
    run_toy(store, parallel=parallel, watch=watch)

    # then it is audited, whatever the planner did meanwhile
    state = state_of(store)
    handed = [event.action for event in events_of(store, "toy", ActionProposed) if event.strategy == "outside"]
    assert len(handed) == (1 if moment is RootQualified else 2)
    assert not state.open_actions
    assert state.status == "stopped"
    assert all(state.implementations[state.actions[action].implementation or ""].verdict for action in handed)
    agrees(store)


def test_a_fork_drops_what_is_not_audited_and_the_planner_says_who_can_bring_it_back(store: Store) -> None:
    # given
    paused(store)
    hand_in(store, "lanes")

    # when
    child = forking.fork("toy", store=store)
    search.resume(child, store=store, harness=simulated())

    # then
    assert events_of(store, child, ActionDropped)[0].action == "a0001"
    withdrawn = events_of(store, child, OpportunityWithdrawn)[0]
    assert withdrawn.opportunity == "o0001"
    assert "hand it in again" in withdrawn.reason
    assert state_of(store, child).best != ROOT
    agrees(store, child)


# --- what is refused -----------------------------------------------------------------------------------------------

TOO_MANY = {f"part_{number}.h": "" for number in range(outside.MOST_FILES + 1)}


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"toy.c": "void toy_full(void);"}, "lacks toy_decode"),
        ({**ROOT_SOURCES, "more.h": " " * outside.MOST_BYTES}, "too much"),
        ({**ROOT_SOURCES, **TOO_MANY}, "too much"),
        (ROOT_SOURCES, "the very sources of i0000"),
        ({**ROOT_SOURCES, "more.c": "// region lost\n"}, "regions cannot be read: .*region lost.*pair"),
    ],
)
def test_what_is_no_complete_offspring_is_refused_and_leaves_no_trace(
    sources: Mapping[str, str], words: str, store: Store
) -> None:
    # given
    paused(store)
    before = store.position("toy")

    # when / then
    with pytest.raises(outside.OffspringRefused, match=words):
        outside.propose("toy", sources, store=store, parents=(ROOT,), scope="joint", rationale="faster")
    assert store.position("toy") == before


def test_it_needs_a_rationale_a_campaign_and_parents_that_are_there(store: Store) -> None:
    paused(store)
    with pytest.raises(outside.OffspringRefused, match="rationale"):
        outside.propose("toy", written("lanes"), store=store, parents=(ROOT,), scope="joint", rationale=" ")
    with pytest.raises(CampaignMissing):
        outside.propose("other", written("lanes"), store=store, parents=(ROOT,), scope="joint", rationale="x")
    with pytest.raises(outside.OffspringRefused, match="no implementation i0009: i0000 is the last"):
        hand_in(store, "lanes", parents=("i0009",))


def test_a_change_beyond_its_scope_is_refused_with_the_regions(store: Store) -> None:
    paused(store)
    with pytest.raises(RuleBroken, match=r"declared decode only.*: full"):
        outside.propose(
            "toy", written("lanes", place="full"), store=store, parents=(ROOT,), scope="decode", rationale="x"
        )
    with pytest.raises(RuleBroken, match=r"declared full only.*: element"):
        outside.propose("toy", written("lanes"), store=store, parents=(ROOT,), scope="full", rationale="x")


def test_a_stopped_campaign_takes_nothing_in(store: Store) -> None:
    run_toy(store, audits=1)
    with pytest.raises(RuleBroken, match="stopped"):
        hand_in(store, "lanes")


def test_where_audits_run_without_a_sandbox_it_must_be_meant(store: Store) -> None:
    # given
    paused(store)
    state = state_of(store)
    assert state.environment is not None
    state.environment = state.environment.model_copy(update={"sandbox": "none"})
    offspring = outside.Offspring(written("lanes"), (ROOT,), "joint", "faster")

    # when / then
    with pytest.raises(outside.SandboxMissing, match="without a sandbox"):
        outside.handed_in(state, offspring, load_operator(TOY))
    assert len(outside.handed_in(state, offspring, load_operator(TOY), unsafe_no_sandbox=True).events) == 3


def test_what_came_from_outside_is_not_judged_again_without_a_sandbox_unless_that_is_meant(store: Store) -> None:
    # given a campaign that was won from outside
    paused(store, audits=1)
    hand_in(store, "lanes")
    resume(store)

    # when it is to be judged again where no sandbox works
    def unboxed(operator: Operator, target: str) -> SimulatedHarness:
        return Unboxed(operator, 0, latency())

    # then
    with pytest.raises(outside.SandboxMissing, match="i0001 came from outside"):
        requalify("toy", store=store, harness=unboxed)
    assert requalify("toy", store=store, harness=unboxed, unsafe_no_sandbox=True).best_now == "i0001"


class Unboxed(SimulatedHarness):
    """A harness on a machine without a sandbox."""

    def environment(self) -> HarnessEnvironment:
        return replace(super().environment(), sandbox="none")


def test_for_a_gpu_it_is_a_kernel_py_with_every_entry_and_what_lies_beside_it_is_left_alone(
    store: Store, tmp_path: Path
) -> None:
    # given a campaign for the target triton, audited by arithmetic
    def arithmetic(operator: Operator, target: str) -> SimulatedHarness:
        return SimulatedHarness(operator, 0)

    watch = when(RootQualified, lambda: search.pause(store, "gpu"))
    search.run("rms_norm", store=store, name="gpu", target="triton", harness=arithmetic, watch=watch, audits=1)
    text = load_operator("rms_norm", "triton").root_sources()["kernel.py"]
    (tmp_path / "kernel.py").write_text(text.replace("# region decode\n", "# region decode\n# by hand\n"))
    (tmp_path / "profile.txt").write_text("two waits")

    # when
    handed = outside.propose("gpu", tmp_path, store=store, parents=(ROOT,), scope="decode", rationale="two waits less")
    search.resume("gpu", store=store, harness=arithmetic)

    # then
    node = state_of(store, "gpu").implementations[handed.implementation]
    assert node.verified
    assert [file.name for file in node.sources] == ["kernel.py"]
    agrees(store, "gpu")


def test_for_a_gpu_its_entries_are_in_kernel_py(tmp_path: Path) -> None:
    operator = load_operator("rms_norm", "triton")
    moved = {"other.py": operator.root_sources()["kernel.py"]}
    (problem,) = outside.problems(outside.Offspring(moved, (ROOT,), "joint", "x"), operator)
    assert "functions of kernel.py" in problem


# --- for real ------------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_a_faster_rms_norm_written_by_hand_is_promoted_on_this_machine(tmp_path: Path) -> None:
    # given a campaign on this machine's harness, paused when its root had qualified
    store = open_store(f"sqlite:///{tmp_path}/kernelbraid.db")
    operator = load_operator("rms_norm")
    watch = when(RootQualified, lambda: search.pause(store, "real"))
    search.run("rms_norm", store=store, name="real", audits=1, watch=watch)
    assert state_of(store, "real").status == "paused"

    # when sixteen partial sums are handed in as a folder, and it is resumed
    lanes = next(item for item in load_catalogue(operator, "cpu") if item.name == "lanes_16")
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in apply([lanes], operator.root_sources()).items():
        (folder / name).write_text(text)
    (folder / "notes.md").write_text("measured at home")
    handed = outside.propose(
        "real", folder, store=store, parents=(ROOT,), scope="joint", rationale="sixteen partial sums for each row"
    )
    search.resume("real", store=store)

    # then it went through a whole audit and is the best
    state = state_of(store, "real")
    assert state.best == handed.implementation == "i0001"
    assert state.implementations["i0001"].performance is Performance.PROMOTABLE
    assert state.speedup_ratio > 1.5
    (submitted,) = events_of(store, "real", ImplementationSubmitted)
    assert [file.name for file in submitted.sources] == ["rms_norm.c"]
    assert set(submitted.contract_items) >= {"sum_order"}
    assert len(events_of(store, "real", CampaignResumed)) == 1
    agrees(store, "real")
    store.close()
