"""Rules of opportunities, actions, edits, scope and lineage."""

from kernelbraid.events import decider
from kernelbraid.events.campaign import CampaignPaused, CampaignStopped
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
from kernelbraid.events.values import ROOT, DropReason, Region, Scope, StopReason
from tests.events.given import (
    Given,
    audited,
    failing,
    given,
    opened,
    proposed,
    raised,
    regions,
    search,
    submitted,
    tried,
    won,
)


def with_offspring(count: int = 2, **policy: int) -> Given:
    """A search with this many verified offspring of the root, none of them the best."""
    story = search(**policy)
    for number in range(1, count + 1):
        story = story.and_then(tried(number), audited(f"i{number:04d}", f"a{number:04d}"))
    return story


# --- opportunities and actions -------------------------------------------------------------------------------------


def test_opportunities_of_one_append_are_numbered_on() -> None:
    both = [raised("o0001"), raised("o0002", mechanism="simd")]
    search().when(decider.raise_opportunities, both).then(*both)
    search().when(decider.raise_opportunities, [raised("o0001"), raised("o0003")]).then_refused("is o0002")


def test_an_action_consumes_its_opportunity() -> None:
    story = search(parallel=2).and_then(raised("o0001")).decided(decider.propose_action, proposed("a0001", "o0001"))
    assert story.state.opportunities["o0001"].status == "consumed"
    story.when(decider.propose_action, proposed("a0002", "o0001")).then_refused("not pending")
    story.when(decider.withdraw_opportunity, "o0001", "no").then_refused("not pending")


def test_a_withdrawn_opportunity_is_not_tried() -> None:
    story = search().and_then(raised("o0001")).decided(decider.withdraw_opportunity, "o0001", "no use")
    assert story.log[-1].event == OpportunityWithdrawn(opportunity="o0001", reason="no use")
    story.when(decider.propose_action, proposed("a0001", "o0001")).then_refused("not pending")


def test_at_most_so_many_actions_are_in_flight() -> None:
    story = search(parallel=1).and_then(raised("o0001"), raised("o0002"), proposed("a0001", "o0001"))
    story.when(decider.propose_action, proposed("a0002", "o0002")).then_refused("in flight already")


def test_an_action_keeps_the_scope_of_its_opportunity() -> None:
    story = search().and_then(raised("o0001", scope="full"))
    story.when(decider.propose_action, proposed("a0001", "o0001")).then_refused("has the scope full")


def test_parents_are_verified_and_different_archived_ones_included() -> None:
    story = with_offspring(1).decided(decider.archive_branch, "i0001", "slow").and_then(raised("o0002", "i0001"))
    story.when(decider.propose_action, proposed("a0002", "o0002", "i0001")).then(proposed("a0002", "o0002", "i0001"))
    twice = proposed("a0002", "o0002", ROOT, ROOT, ancestor=ROOT)
    story.when(decider.propose_action, twice).then_refused("different")


def test_an_action_in_audit_is_no_parent() -> None:
    search().and_then(tried(1)).when(decider.raise_opportunities, [raised("o0002", "i0001")]).then_refused("a parent")


def test_ids_go_on_without_gaps() -> None:
    story = search().and_then(raised("o0001"))
    story.when(decider.propose_action, proposed("a0002", "o0001")).then_refused("next action is a0001")
    story = story.and_then(proposed("a0001", "o0001"))
    story.when(decider.submit_implementation, submitted("a0001", "i0002")).then_refused("i0001")


def test_an_action_has_one_offspring() -> None:
    story = search().and_then(tried(1))
    story.when(decider.submit_implementation, submitted("a0001", "i0002")).then_refused("already")
    story.when(decider.fail_edit, "a0001", "no").then_refused("is audited")


# --- edits ---------------------------------------------------------------------------------------------------------


def test_a_failed_edit_returns_its_opportunity_twice() -> None:
    story = search().and_then(raised("o0001"))
    for number, status in ((1, "pending"), (2, "pending"), (3, "consumed")):
        story = story.decided(decider.propose_action, proposed(f"a000{number}", "o0001"))
        story = story.decided(decider.fail_edit, f"a000{number}", "no match")
        assert story.state.opportunities["o0001"].status == status
    story.when(decider.propose_action, proposed("a0004", "o0001")).then_refused("not pending")
    assert story.state.kappa == 0


def test_edits_that_keep_failing_stop_the_search() -> None:
    story = search(edits_failing=2).and_then(raised("o0001"))
    for number in (1, 2):
        story = story.and_then(
            proposed(f"a000{number}", "o0001"), EditFailed(action=f"a000{number}", reason="no match")
        )
    story.when(decider.propose_action, proposed("a0003", "o0001")).then_refused("edits keep failing")
    assert decider.due_stop(story.state) is StopReason.EDITS_FAILING


def test_an_edit_that_works_ends_the_row_of_failures() -> None:
    story = search(edits_failing=2).and_then(raised("o0001"), proposed("a0001", "o0001"))
    story = story.and_then(EditFailed(action="a0001", reason=""), proposed("a0002", "o0001"))
    story = story.decided(decider.submit_implementation, submitted("a0002", "i0001"))
    assert story.state.consecutive_edit_failures == 0


def test_a_dropped_action_returns_its_opportunity() -> None:
    story = search().and_then(tried(1)).decided(decider.drop_action, "a0001", DropReason.STOPPED)
    assert story.log[-1].event == ActionDropped(action="a0001", reason=DropReason.STOPPED)
    assert list(story.state.pending) == ["o0001"]
    assert story.state.implementations["i0001"].standing == "dropped"
    story.when(decider.complete_audit, audited("i0001", "a0001")).then_refused("not open")


def test_only_a_fork_drops_as_forked() -> None:
    search().and_then(tried(1)).when(decider.drop_action, "a0001", DropReason.FORKED).then_refused("by the fork")


# --- scope ---------------------------------------------------------------------------------------------------------


def scoped(scope: Scope) -> Given:
    return search().and_then(raised("o0001", scope=scope), proposed("a0001", "o0001", scope=scope))


def test_a_change_within_its_scope_is_taken() -> None:
    for scope, text in (("full", regions(full="new")), ("decode", regions(decode="new"))):
        event = submitted("a0001", "i0001", text)
        scoped(scope).when(decider.submit_implementation, event).then(event)  # type: ignore[arg-type]


def test_a_change_that_reaches_the_other_path_is_refused() -> None:
    for text in (regions(full="new", decode="new"), regions(shared="new"), regions()[:2]):
        scoped("full").when(decider.submit_implementation, submitted("a0001", "i0001", text)).then_refused("other path")


def test_a_region_widened_to_both_paths_reaches_the_other_one() -> None:
    wide = (Region(name="full_loop", paths=("full", "decode"), digest="new"), *regions()[1:])
    narrow = (*regions()[:2], Region(name="load", paths=("full",), digest="new"))
    added = (*regions(), Region(name="more", paths=("decode",), digest="new"))
    for text in (wide, narrow, added):
        scoped("full").when(decider.submit_implementation, submitted("a0001", "i0001", text)).then_refused("other path")


def test_a_merge_is_honest_towards_each_parent() -> None:
    full, decode = regions(full="new"), regions(decode="new")
    story = search(parallel=2)
    for number, text in ((1, full), (2, decode)):
        names = (f"o000{number}", f"a000{number}", f"i000{number}")
        story = story.and_then(raised(names[0]), proposed(*names[1::-1]), submitted(names[1], names[2], text))
        story = story.and_then(audited(names[2], names[1]))
    merge = proposed("a0003", "o0003", "i0002", "i0001", ancestor=ROOT, scope="full")
    story = story.and_then(raised("o0003", "i0001", "i0002", scope="full"), merge)
    both = submitted("a0003", "i0003", regions(full="new", decode="new"))
    story.when(decider.submit_implementation, both).then_refused("other path")


def test_a_joint_change_may_touch_everything() -> None:
    event = submitted("a0001", "i0001", regions("new", "new", "new"))
    scoped("joint").when(decider.submit_implementation, event).then(event)


# --- lineage -------------------------------------------------------------------------------------------------------


def test_continue_keeps_it_in_the_frontier_with_a_follow_up() -> None:
    story = with_offspring(1).and_then(raised("o0002", "i0001"))
    outcome = story.when(decider.continue_branch, "i0001", "o0002", "opens tiling")
    outcome.then(BranchContinued(implementation="i0001", opportunity="o0002", reason="opens tiling"))
    story = story.decided(decider.continue_branch, "i0001", "o0002", "opens tiling")
    assert "i0001" in story.state.frontier
    assert not story.state.undecided_branches


def test_a_follow_up_builds_on_what_it_keeps() -> None:
    story = with_offspring(1).and_then(raised("o0002"))
    story.when(decider.continue_branch, "i0001", "o0009", "").then_refused("no opportunity")
    story.when(decider.continue_branch, "i0001", "o0002", "").then_refused("does not build on")
    story.when(decider.continue_branch, "i0001", None, "").then_refused("none is named")
    story.when(decider.continue_branch, "i0001", "o0003", "raised beside it").then_types(BranchContinued)
    story = story.and_then(raised("o0003", "i0001")).decided(decider.withdraw_opportunity, "o0003", "no")
    story.when(decider.continue_branch, "i0001", "o0003", "").then_refused("withdrawn")


def test_the_best_stays_without_a_follow_up() -> None:
    story = search().and_then(tried(1)).decided(decider.complete_audit, won("i0001", "a0001", 1))
    story.when(decider.continue_branch, "i0001", None, "promoted").then_types(BranchContinued)


def test_defer_joins_the_merge_list_until_a_merge_names_it() -> None:
    story = with_offspring(3)
    for name in ("i0001", "i0002", "i0003"):
        story = story.decided(decider.defer_branch, name, "for a merge")
    assert story.log[-1].event == BranchDeferred(implementation="i0003", reason="for a merge")
    story = story.and_then(raised("o0004", "i0001", "i0002"), raised("o0005", "i0001"))
    single = story.decided(decider.propose_action, proposed("a0004", "o0005", "i0001"))
    assert list(single.state.merge_list) == ["i0001", "i0002", "i0003"]
    merge = proposed("a0004", "o0004", "i0001", "i0002", ancestor=ROOT)
    merged = story.decided(decider.propose_action, merge)
    assert list(merged.state.merge_list) == ["i0003"]
    assert set(merged.state.merge_list) <= set(merged.state.frontier)


def test_a_merge_names_an_ancestor_of_every_parent() -> None:
    story = with_offspring(2).and_then(tried(3, "i0001"), audited("i0003", "a0003"), raised("o0004"))
    for ancestor, rule in ((None, "names the common ancestor"), ("i0001", "not an ancestor of every parent")):
        merge = proposed("a0004", "o0004", "i0002", "i0003", ancestor=ancestor)
        story.when(decider.propose_action, merge).then_refused(rule)
    story.when(decider.propose_action, proposed("a0004", "o0004", ancestor=ROOT)).then_refused("one parent needs no")


def test_a_deferred_winner_that_is_promoted_still_waits_for_its_merge() -> None:
    story = search(parallel=2).and_then(tried(1), tried(2)).decided(decider.complete_audit, won("i0001", "a0001", 1))
    story = story.decided(decider.defer_branch, "i0001", "merges with the other path")
    assert list(story.state.merge_list) == ["i0001"]


def test_archive_moves_from_frontier_to_archive_and_reactivate_back() -> None:
    story = with_offspring(1).decided(decider.archive_branch, "i0001", "slow")
    assert story.log[-1].event == BranchArchived(implementation="i0001", reason="slow")
    assert (list(story.state.frontier), list(story.state.archive)) == ([ROOT], ["i0001"])
    story.when(decider.archive_branch, "i0001", "again").then_refused("not in the frontier")
    story = story.and_then(raised("o0002")).decided(decider.reactivate_branch, "i0001", "o0002", "now useful")
    assert story.log[-1].event == BranchReactivated(implementation="i0001", because="o0002", reason="now useful")
    assert (list(story.state.frontier), list(story.state.archive)) == ([ROOT, "i0001"], [])


def test_reactivation_cites_something_later_than_the_archiving() -> None:
    story = with_offspring(2).decided(decider.archive_branch, "i0001", "slow")
    for earlier in ("i0002", "o0001", "a0002", "i0001"):
        story.when(decider.reactivate_branch, "i0001", earlier, "").then_refused("no later")
    story.when(decider.reactivate_branch, "i0001", "x", "").then_refused("nothing here is called")
    story.when(decider.reactivate_branch, "i0002", "o0001", "").then_refused("not archived")
    later = story.and_then(tried(3, "i0002"), audited("i0003", "a0003"))
    for cited in ("o0003", "a0003", "i0003"):
        later.when(decider.reactivate_branch, "i0001", cited, "").then_types(BranchReactivated)


def test_the_merge_list_forgets_what_is_archived() -> None:
    story = with_offspring(1).decided(decider.defer_branch, "i0001", "").decided(decider.archive_branch, "i0001", "")
    assert not story.state.merge_list


def test_abandon_withdraws_and_archives_a_direction() -> None:
    story = with_offspring(2).and_then(raised("o0003"), raised("o0004", mechanism="simd"))
    outcome = story.when(decider.abandon_branch, "tile", ["i0001", "i0002"], "never pays")
    outcome.then(
        BranchAbandoned(mechanism="tile", implementations=("i0001", "i0002"), withdrawn=("o0003",), reason="never pays")
    )
    story = story.decided(decider.abandon_branch, "tile", ["i0001", "i0002"], "never pays")
    assert (list(story.state.frontier), list(story.state.archive)) == ([ROOT], ["i0001", "i0002"])
    assert (list(story.state.pending), story.state.opportunities["o0003"].status) == (["o0004"], "withdrawn")
    assert not story.state.undecided_branches
    assert "i0001" in story.state.implementations


def test_abandon_takes_verified_members_of_the_direction_only() -> None:
    story = with_offspring(1).and_then(tried(2), failing("i0002", "a0002"))
    story.when(decider.abandon_branch, "tile", ["i0002"], "").then_refused("not a verified")
    story.when(decider.abandon_branch, "simd", ["i0001"], "").then_refused("does not contain")


def test_the_best_is_never_archived_or_abandoned() -> None:
    story = search().and_then(tried(1)).decided(decider.complete_audit, won("i0001", "a0001", 1))
    story.when(decider.archive_branch, "i0001", "").then_refused("never archived or abandoned")
    story.when(decider.abandon_branch, "tile", ["i0001"], "").then_refused("never archived or abandoned")
    story.when(decider.archive_branch, ROOT, "superseded").then_types(BranchArchived)


# --- work from outside ---------------------------------------------------------------------------------------------


def handed_in(
    number: int = 1, *parents: str, scope: Scope = "joint"
) -> tuple[OpportunityRaised, ActionProposed, ImplementationSubmitted]:
    """The opportunity, action and implementation of one offspring from outside."""
    opportunity, action = f"o{number:04d}", f"a{number:04d}"
    return (
        raised(opportunity, *parents, mechanism=f"outside_{action}", scope=scope),
        proposed(action, opportunity, *parents, scope=scope),
        submitted(action, f"i{number:04d}"),
    )


def test_an_offspring_from_outside_enters_whole_and_waits_for_its_audit() -> None:
    story = search().decided(decider.propose_offspring, *handed_in())
    assert story.state.opportunities["o0001"].status == "consumed"
    assert list(story.state.open_actions) == ["a0001"]
    assert story.state.implementations["i0001"].standing == "submitted"
    assert story.and_then(audited("i0001", "a0001")).state.kappa == 1


def test_it_needs_no_room_in_flight_and_leaves_the_planner_none() -> None:
    story = search(parallel=1).and_then(raised("o0001"), proposed("a0001", "o0001"), submitted("a0001", "i0001"))
    story = story.decided(decider.propose_offspring, *handed_in(2)).and_then(audited("i0001", "a0001"))
    assert list(story.state.open_actions) == ["a0002"]
    story.and_then(raised("o0003")).when(decider.propose_action, proposed("a0003", "o0003")).then_refused("in flight")


def test_it_enters_while_the_campaign_is_paused_but_neither_before_it_runs_nor_after_it_stopped() -> None:
    search().and_then(CampaignPaused(reason="")).when(decider.propose_offspring, *handed_in()).then(*handed_in())
    given(opened()).when(decider.propose_offspring, *handed_in()).then_refused("root is to be audited first")
    stopped = search().and_then(CampaignStopped(reason=StopReason.USER, detail=""))
    stopped.when(decider.propose_offspring, *handed_in()).then_refused("stopped")


def test_it_is_held_to_the_rules_of_every_action() -> None:
    spent = with_offspring(1, kappa=1)
    spent.when(decider.propose_offspring, *handed_in(2)).then_refused("kappa")
    search(audits=1).and_then(tried(1)).when(decider.propose_offspring, *handed_in(2)).then_refused("budget")
    search().and_then(tried(1)).when(decider.propose_offspring, *handed_in(2, "i0001")).then_refused("not verified")
    search().when(decider.propose_offspring, *handed_in(2)).then_refused("next opportunity is o0001")
    merge = with_offspring(2).when(decider.propose_offspring, *handed_in(3, "i0001", "i0002"))
    merge.then_refused("common ancestor")


def test_its_scope_is_honest_and_its_parts_belong_together() -> None:
    decode = handed_in(scope="decode")
    beyond = decode[2].model_copy(update={"regions": regions(full="other")})
    search().when(decider.propose_offspring, *decode[:2], beyond).then_refused("regions of the other path: full")
    within = decode[2].model_copy(update={"regions": regions(decode="other")})
    search().when(decider.propose_offspring, *decode[:2], within).then(*decode[:2], within)
    other = decode[2].model_copy(update={"action": "a0009"})
    search().when(decider.propose_offspring, *decode[:2], other).then_refused("that of a0001")
    joint = decode[1].model_copy(update={"scope": "joint"})
    search().when(decider.propose_offspring, decode[0], joint, decode[2]).then_refused("has the scope decode")
