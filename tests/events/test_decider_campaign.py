"""Rules of a campaign's life: threshold and stops, pauses, budgets, model calls, forks."""

import pytest

from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import (
    CampaignForked,
    CampaignPaused,
    CampaignResumed,
    CampaignStopped,
    NoteAdded,
    RootQualified,
)
from kernelbraid.events.effects import ModelCalled, ModelRequested
from kernelbraid.events.search import ActionDropped
from kernelbraid.events.state import Spent
from kernelbraid.events.values import (
    ROOT,
    Change,
    Correctness,
    DropReason,
    Infrastructure,
    Performance,
    Specification,
    StopReason,
)
from tests.events.given import (
    DIGESTS,
    ELSEWHERE,
    ENVIRONMENT,
    Given,
    audited,
    failing,
    given,
    measured,
    opened,
    other_contract,
    promoted,
    proposed,
    raised,
    root_audit,
    search,
    specification,
    submitted,
    timed,
    told,
    tried,
    won,
)

USER_STOP = CampaignStopped(reason=StopReason.USER)
PAUSE = CampaignPaused(reason="")


# --- opening -------------------------------------------------------------------------------------------------------


def test_a_campaign_opens_once_and_first() -> None:
    given().when(decider.open_campaign, opened()).then(opened())
    given(opened()).when(decider.open_campaign, opened()).then_refused("open already")


def test_nothing_is_decided_before_it_opened() -> None:
    given().when(decider.note, "hello").then_refused("not been opened")
    given().when(decider.pause, "").then_refused("not been opened")
    given().when(decider.resume, ENVIRONMENT).then_refused("not been opened")
    given().when(decider.stop, StopReason.USER).then_refused("not been opened")
    given().when(decider.fork, "", specification(), ENVIRONMENT, DIGESTS).then_refused("not been opened")


# --- the threshold and other stops ---------------------------------------------------------------------------------


def at_the_threshold() -> Given:
    """Kappa is spent while one more audit runs."""
    story = search(parallel=3, kappa=2).and_then(tried(1), tried(2), tried(3))
    return story.and_then(failing("i0001", "a0001"), failing("i0002", "a0002"))


def test_at_the_threshold_no_new_action_starts() -> None:
    story = at_the_threshold().and_then(raised("o0004"))
    story.when(decider.propose_action, proposed("a0004", "o0004")).then_refused("kappa reached its threshold")


def test_the_stop_at_kappa_waits_for_running_audits() -> None:
    story = at_the_threshold()
    story.when(decider.stop, StopReason.KAPPA).then_refused("does not hold")
    story.and_then(failing("i0003", "a0003")).when(decider.stop, StopReason.KAPPA).then_types(CampaignStopped)


def test_a_running_audit_may_reset_the_threshold() -> None:
    story = at_the_threshold().decided(decider.complete_audit, won("i0003", "a0003", 1)).and_then(raised("o0004"))
    story.when(decider.stop, StopReason.KAPPA).then_refused("does not hold")
    story.when(decider.propose_action, proposed("a0004", "o0004")).then(proposed("a0004", "o0004"))


def test_the_stop_at_kappa_waits_for_due_timings_which_may_reset_it() -> None:
    story = search(parallel=3, kappa=1).and_then(tried(1), tried(2))
    story = story.decided(decider.complete_audit, won("i0001", "a0001", 1))
    story = story.decided(decider.complete_audit, won("i0002", "a0002", 2))
    for name in ("i0001", "i0002"):
        story = story.decided(decider.defer_branch, name, "")
    assert (story.state.kappa, list(story.state.retimings)) == (1, ["i0002"])
    story.when(decider.stop, StopReason.KAPPA).then_refused("does not hold")
    lost = story.and_then(timed("i0002", measurement=measured(None, "i0001")))
    lost.when(decider.stop, StopReason.KAPPA).then_types(CampaignStopped)
    kept = story.decided(decider.complete_timing, won_again("i0002", 3, "i0001"))
    assert (kept.state.best, kept.state.kappa) == ("i0002", 0)
    kept.when(decider.stop, StopReason.KAPPA).then_refused("does not hold")


def won_again(implementation: str, k: int, incumbent: str) -> TimingCompleted:
    return timed(implementation, Performance.PROMOTABLE, measured(k, incumbent))


def test_a_stop_waits_for_the_branchers_word() -> None:
    story = search(kappa=1).and_then(tried(1), audited("i0001", "a0001"))
    story.when(decider.stop, StopReason.KAPPA).then_refused("does not hold")
    story.decided(decider.archive_branch, "i0001", "").when(decider.stop, StopReason.KAPPA).then_types(CampaignStopped)


def test_opportunities_are_exhausted_when_none_is_pending_or_tried() -> None:
    search().when(decider.stop, StopReason.OPPORTUNITIES_EXHAUSTED).then_types(CampaignStopped)
    story = search().and_then(raised("o0001"))
    story.when(decider.stop, StopReason.OPPORTUNITIES_EXHAUSTED).then_refused("does not hold")
    story = story.and_then(proposed("a0001", "o0001"))
    story.when(decider.stop, StopReason.OPPORTUNITIES_EXHAUSTED).then_refused("does not hold")


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason is not StopReason.USER])
def test_a_stop_needs_its_reason(reason: StopReason) -> None:
    search().and_then(raised("o0001")).when(decider.stop, reason).then_refused("does not hold")


def test_a_user_may_stop_at_any_time_and_once() -> None:
    for story in (given(opened()), search().and_then(tried(1)), search().and_then(PAUSE)):
        story.when(decider.stop, StopReason.USER).then(USER_STOP)
    search().and_then(USER_STOP).when(decider.stop, StopReason.USER).then_refused("stopped already")


def test_after_a_stop_only_notes_and_running_audits_enter() -> None:
    story = search(parallel=3).and_then(tried(1), tried(2), raised("o0003"), proposed("a0003", "o0003"))
    story = story.and_then(raised("o0004"), USER_STOP)
    refused = [
        (decider.raise_opportunities, [raised("o0005")]),
        (decider.withdraw_opportunity, "o0004", ""),
        (decider.propose_action, proposed("a0004", "o0004")),
        (decider.submit_implementation, submitted("a0003", "i0003")),
        (decider.fail_edit, "a0003", ""),
        (decider.drop_action, "a0003", DropReason.STOPPED),
        (decider.defer_branch, ROOT, ""),
        (decider.abandon_branch, "tile", [], ""),
        (decider.pause, ""),
        (decider.resume, ENVIRONMENT),
        (decider.request_model, requested()),
    ]
    for verb, *wanted in refused:
        story.when(verb, *wanted).then_refused("stopped")  # type: ignore[arg-type]
    story.when(decider.note, "a word").then(NoteAdded(text="a word"))
    story.when(decider.complete_audit, failing("i0001", "a0001")).then_types(AuditCompleted)
    story.when(decider.complete_audit, won("i0002", "a0002", 1)).then_types(AuditCompleted)
    late = story.decided(decider.complete_audit, won("i0002", "a0002", 1))
    assert (late.state.status, late.state.best) == ("stopped", ROOT)
    late.when(decider.complete_timing, timed("i0002")).then_refused("not due")


def test_a_roots_audit_that_ends_after_the_stop_opens_nothing() -> None:
    for verdict in (Correctness.VERIFIED, Correctness.CRASHED, Infrastructure.DEVICE_FAULT):
        story = given(opened(), USER_STOP)
        story.when(decider.complete_root_audit, root_audit(verdict)).then_types(AuditCompleted)
        assert story.decided(decider.complete_root_audit, root_audit(verdict)).state.status == "stopped"


def test_a_note_needs_words() -> None:
    search().when(decider.note, " \n").then_refused("needs text")


# --- pauses --------------------------------------------------------------------------------------------------------


def test_a_pause_lets_running_work_end_and_starts_nothing() -> None:
    story = search(parallel=3).and_then(tried(1), raised("o0002"), proposed("a0002", "o0002"), raised("o0003"), PAUSE)
    story.when(decider.propose_action, proposed("a0003", "o0003")).then_refused("paused")
    story.when(decider.raise_opportunities, [raised("o0004")]).then_refused("paused")
    story.when(decider.request_model, requested()).then_refused("paused")
    story.when(decider.pause, "again").then_refused("paused")
    story.when(decider.submit_implementation, submitted("a0002", "i0002")).then(submitted("a0002", "i0002"))
    story.when(decider.complete_audit, won("i0001", "a0001", 1)).then_types(AuditCompleted, ImplementationPromoted)
    assert decider.due_stop(story.state) is None
    resumed = story.decided(decider.resume, ENVIRONMENT, "again")
    assert resumed.log[-1].event == CampaignResumed(reason="again")
    resumed.when(decider.propose_action, proposed("a0003", "o0003")).then(proposed("a0003", "o0003"))


def test_a_pause_outlasts_the_roots_audit() -> None:
    story = given(opened(), PAUSE).decided(decider.complete_root_audit, root_audit())
    assert (story.state.status, story.state.best) == ("paused", ROOT)
    assert story.decided(decider.resume, ENVIRONMENT).state.status == "running"


def test_a_crashed_campaign_is_resumed_without_a_pause() -> None:
    search().and_then(tried(1)).when(decider.resume, ENVIRONMENT).then(CampaignResumed())


def test_another_environment_cannot_resume() -> None:
    search().when(decider.resume, ELSEWHERE).then_refused("fork it")


# --- budgets -------------------------------------------------------------------------------------------------------


def requested(request: str = "r1", tokens: int = 60, usd: float = 0.5, action: str | None = None) -> ModelRequested:
    return ModelRequested(
        request=request,
        agent="planner",
        action=action,
        model="m",
        prompt="p",
        attempt=1,
        reserved_tokens=tokens,
        reserved_usd=usd,
    )


def called(request: str = "r1", tokens: int = 10, **changes: object) -> ModelCalled:
    return ModelCalled.model_validate(
        {
            "request": request,
            "agent": "planner",
            "model": "m",
            "reply": None,
            "input_tokens": tokens,
            "output_tokens": tokens,
            "cost_usd": 0.1,
            "elapsed_s": 1.0,
            "attempt": 1,
            "outcome": "answered",
        }
        | changes
    )


def test_an_audit_budget_counts_what_is_in_flight() -> None:
    story = search(parallel=3, audits=2).and_then(tried(1), tried(2), raised("o0003"))
    story.when(decider.propose_action, proposed("a0003", "o0003")).then_refused("a budget is spent")
    story.when(decider.stop, StopReason.BUDGET).then_refused("does not hold")
    story = story.and_then(failing("i0001", "a0001"), failing("i0002", "a0002"))
    story.when(decider.stop, StopReason.BUDGET).then_types(CampaignStopped)


def test_a_model_call_reserves_before_it_spends() -> None:
    story = search(tokens=100, cost_usd=1.0).and_then(raised("o0001"))
    story.when(decider.request_model, requested(tokens=101)).then_refused("token budget")
    story.when(decider.request_model, requested(usd=1.5)).then_refused("cost budget")
    story = story.decided(decider.request_model, requested())
    story.when(decider.request_model, requested("r2")).then_refused("token budget has no room")
    story.when(decider.request_model, requested("r2", tokens=40, usd=0.6)).then_refused("cost budget has no room")
    story = story.decided(decider.record_model_call, called())
    assert story.state.spent == Spent(tokens=20, cost_usd=0.1, active_s=story.state.spent.active_s)
    story.when(decider.request_model, requested("r2")).then(requested("r2"))


def test_reserved_budget_bars_new_actions() -> None:
    story = search(tokens=60).and_then(raised("o0001")).decided(decider.request_model, requested())
    story.when(decider.propose_action, proposed("a0001", "o0001")).then_refused("a budget is spent")


def test_a_requests_number_is_used_once() -> None:
    story = search().decided(decider.request_model, requested())
    story.when(decider.request_model, requested()).then_refused("requested already")
    story = story.decided(decider.record_model_call, called())
    story.when(decider.request_model, requested()).then_refused("requested already")
    story.when(decider.record_model_call, called()).then_refused("was not requested, or has ended")


def test_a_call_answers_its_own_request() -> None:
    story = search().decided(decider.request_model, requested())
    story.when(decider.record_model_call, called(attempt=2)).then_refused("attempt 1 of the planner")
    story.when(decider.request_model, requested("r2", action="a0009")).then_refused("no action a0009")


def test_a_call_that_was_paid_is_recorded_after_a_stop() -> None:
    story = search().decided(decider.request_model, requested()).and_then(USER_STOP)
    story.when(decider.record_model_call, called()).then(called())


def test_a_wall_budget_counts_driven_time_only() -> None:
    story = search(wall_s=100.0).and_then(raised("o0001"))
    before = story.state.spent.active_s
    story = story.and_then(
        told(PAUSE, "user", 5), told(NoteAdded(text="night"), "user", 9000), told(CampaignResumed(), "driver", 9000)
    )
    assert story.state.spent.active_s == before
    story = story.and_then(told(NoteAdded(text="hello"), "user", 10), told(raised("o0002"), "planner", 20))
    assert story.state.spent.active_s == before + 30
    crashed = story.and_then(told(USER_STOP, "user", 9000))
    assert crashed.state.spent.active_s == before + 30


def test_a_spent_wall_budget_bars_actions_and_stops() -> None:
    story = search(wall_s=100.0).and_then(raised("o0001"))
    propose = (decider.propose_action, proposed("a0001", "o0001"))
    left = 100.0 - story.state.spent.active_s
    story.when(*propose, elapsed_s=left - 1).then(proposed("a0001", "o0001"))
    story.when(*propose, elapsed_s=left).then_refused("a budget is spent")
    story.when(decider.stop, StopReason.BUDGET, elapsed_s=left - 1).then_refused("does not hold")
    story.when(decider.stop, StopReason.BUDGET, elapsed_s=left).then_types(CampaignStopped)


# --- forks ---------------------------------------------------------------------------------------------------------


def forked(story: Given, wanted: Specification | None = None, **options: object) -> Given:
    """The child that forks where the story ends."""
    environment = options.pop("environment", ENVIRONMENT)
    state = story.state
    before = wanted or state.specified()
    events = decider.fork(state, "hash", before, environment, DIGESTS, **options)  # type: ignore[arg-type]
    return story.and_then(*events, campaign="child")


def test_a_fork_drops_open_actions_and_their_opportunities_are_pending() -> None:
    story = search(parallel=3).and_then(tried(1), tried(2), raised("o0003"), proposed("a0003", "o0003"))
    outcome = story.when(decider.fork, "hash", specification(parallel=3), ENVIRONMENT, DIGESTS)
    outcome.then_types(CampaignForked, ActionDropped, ActionDropped, ActionDropped)
    child = forked(story).state
    assert (list(child.open_actions), list(child.pending)) == ([], ["o0001", "o0002", "o0003"])
    assert (child.campaign, child.forked_from, child.status) == ("child", ("c", story.state.position), "running")
    assert {child.implementations[name].standing for name in ("i0001", "i0002")} == {"dropped"}
    assert list(story.state.open_actions) == ["a0001", "a0002", "a0003"]


def test_kappa_and_the_count_of_confirmations_are_inherited() -> None:
    lost = audited("i0001", "a0001", measurement=measured(1, ratio=1.0, upper_bound_ratio=1.01))
    child = forked(search().and_then(tried(1)).decided(decider.complete_audit, lost))
    assert (child.state.kappa, child.state.confirmations) == (1, 1)
    child = child.and_then(tried(2))
    child.when(decider.complete_audit, won("i0002", "a0002", 1)).then_refused("confirmation is number 2")


def test_a_fork_at_a_spent_kappa_must_raise_it() -> None:
    story = search(kappa=1).and_then(tried(1), failing("i0001", "a0001"))
    story.when(decider.fork, "hash", specification(kappa=1), ENVIRONMENT, DIGESTS).then_refused("kappa is spent")
    story.when(decider.fork, "hash", specification(kappa=2), ENVIRONMENT, DIGESTS).then_types(CampaignForked)


def test_budgets_start_anew_and_what_was_inherited_is_shown() -> None:
    story = search(audits=1).decided(decider.request_model, requested()).and_then(called(), requested("r2"))
    story = story.and_then(tried(1), failing("i0001", "a0001"))
    spent = story.state.spent
    child = forked(story)
    assert child.state.spent == Spent()
    assert child.state.inherited == Spent(1, 20, 0, 0.1, 0.0, spent.active_s)
    assert decider.due_stop(child.state) is StopReason.OPPORTUNITIES_EXHAUSTED
    grandchild = forked(child.and_then(tried(2), failing("i0002", "a0002")))
    assert grandchild.state.inherited is not None
    assert grandchild.state.inherited.audits == 2
    child.when(decider.record_model_call, called("r2")).then_refused("was not requested")
    child.when(decider.request_model, requested("r1")).then_refused("requested already")


def test_policy_keys_change_freely() -> None:
    story = search(seed=1).and_then(tried(1), audited("i0001", "a0001"))
    event = decider.fork(story.state, "hash", specification(seed=2, parallel=4), ENVIRONMENT, DIGESTS)[0]
    assert isinstance(event, CampaignForked)
    assert not event.stale
    assert event.changes == (
        Change(key="policy.seed", before='{"seed":1}', after='{"seed":2}'),
        Change(key="policy.parallel", before='{"parallel":1}', after='{"parallel":4}'),
    )
    assert forked(story).state.implementations["i0001"].verified


def stale_child(**options: object) -> Given:
    """A child whose inherited verdicts do not hold: i0001 is the best, i0002 in the frontier, i0003 archived."""
    story = search(parallel=3).and_then(tried(1)).decided(decider.complete_audit, won("i0001", "a0001", 1))
    story = story.and_then(tried(2), audited("i0002", "a0002"), tried(3), audited("i0003", "a0003"))
    story = story.decided(decider.archive_branch, "i0003", "").decided(decider.archive_branch, ROOT, "superseded")
    return forked(story.and_then(raised("o0004", "i0002")), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"wanted": other_contract(parallel=3)}, {"environment": ELSEWHERE}, {"reaudit": True}],
    ids=["contract", "environment", "on request"],
)
def test_stale_verdicts_are_audited_again_before_any_action(options: dict[str, object]) -> None:
    child = stale_child(**options)
    assert list(child.state.stale) == [ROOT, "i0001", "i0002"]
    assert (child.state.status, child.state.root_objective_s, child.state.best) == ("opening", None, None)
    child.when(decider.propose_action, proposed("a0004", "o0004", "i0002")).then_refused("opening")
    child.when(decider.archive_branch, "i0002", "").then_refused("audited again")


def again(name: str, *, win: int = 0) -> AuditCompleted:
    return won(name, None, win) if win else audited(name, None)


def test_root_first_then_best_and_frontier() -> None:
    child = stale_child(reaudit=True)
    child.when(decider.complete_audit, again("i0001", win=2)).then_refused("not due")
    child = child.decided(decider.complete_root_audit, root_audit())
    assert (child.state.best, ROOT in child.state.frontier, ROOT in child.state.archive) == (ROOT, True, False)
    child = child.decided(decider.complete_audit, again("i0001", win=2))
    assert (child.state.best, child.state.status) == ("i0001", "opening")
    child = child.decided(decider.complete_audit, again("i0002"))
    assert (child.state.status, child.state.spent.audits) == ("running", 0)
    child.when(decider.propose_action, proposed("a0004", "o0004", "i0002")).then(proposed("a0004", "o0004", "i0002"))
    child.when(decider.complete_audit, again("i0003")).then_refused("not due")
    child.when(decider.reactivate_branch, "i0003", "i0002", "").then_refused("not verified in this environment")


def test_an_audit_again_takes_the_place_of_the_earlier_one() -> None:
    child = stale_child(reaudit=True).decided(decider.complete_root_audit, root_audit())
    kappa, counts = child.state.kappa, (child.state.audited_count, child.state.verified_count)
    child = child.decided(decider.complete_audit, failing("i0002", None))
    assert counts == (4, 4)
    assert (child.state.audited_count, child.state.verified_count, child.state.failed_count) == (4, 3, 1)
    assert (child.state.kappa, "i0002" in child.state.frontier) == (kappa, False)


def test_an_infrastructure_verdict_leaves_the_earlier_one() -> None:
    child = stale_child(reaudit=True).decided(decider.complete_root_audit, root_audit())
    fault = failing("i0002", None, Infrastructure.DEVICE_FAULT)
    child = child.decided(decider.complete_audit, fault)
    node = child.state.implementations["i0002"]
    assert (node.verdict, node.verified, "i0002" in child.state.frontier) == (Correctness.VERIFIED, False, True)
    child.when(decider.complete_audit, fault).then_types(AuditCompleted, CampaignPaused)


def test_a_root_that_fails_in_a_stale_fork_stops_it() -> None:
    child = stale_child(reaudit=True)
    outcome = child.when(decider.complete_root_audit, root_audit(Correctness.CRASHED))
    outcome.then_types(AuditCompleted, CampaignStopped)


def test_a_fork_of_an_unqualified_search_audits_the_root() -> None:
    for story in (
        given(opened()),
        given(opened()).decided(decider.complete_root_audit, root_audit(Correctness.CRASHED)),
        given(opened(), USER_STOP).decided(decider.complete_root_audit, root_audit()),
    ):
        child = forked(story)
        assert (list(child.state.stale), child.state.status) == ([ROOT], "opening")
        child.when(decider.complete_root_audit, root_audit()).then_types(AuditCompleted, RootQualified)


def test_a_stop_in_a_stale_fork_leaves_the_root_to_qualify_in_the_next() -> None:
    child = stale_child(reaudit=True).and_then(USER_STOP, campaign="child")
    child = child.decided(decider.complete_root_audit, root_audit())
    grandchild = forked(child)
    assert (list(grandchild.state.stale), grandchild.state.best) == ([ROOT, "i0001", "i0002"], None)


def test_what_a_stop_left_unpromoted_is_timed_again_in_a_fork() -> None:
    story = (
        search(parallel=3)
        .and_then(tried(1), tried(2), tried(3))
        .decided(decider.complete_audit, won("i0001", "a0001", 1))
    )
    story = story.decided(decider.complete_audit, won("i0002", "a0002", 2)).and_then(USER_STOP)
    story = story.decided(decider.complete_audit, won("i0003", "a0003", 3, "i0001"))
    assert (list(story.state.retimings), list(story.state.unsettled)) == ([], ["i0002", "i0003"])
    child = forked(story)
    assert list(child.state.retimings) == ["i0002", "i0003"]
    event = won_again("i0003", 4, "i0001")
    child.when(decider.complete_timing, event).then(event, promoted("i0003", "i0001"))
    assert not forked(story, reaudit=True).state.retimings
