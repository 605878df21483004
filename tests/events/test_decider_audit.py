"""Rules of audits: verified, admissible, promoted, timed again, counted."""

from typing import Any

import pytest

from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted
from kernelbraid.events.campaign import CampaignPaused, CampaignResumed, CampaignStopped, RootQualified
from kernelbraid.events.values import (
    ROOT,
    Correctness,
    Infrastructure,
    Performance,
    StopReason,
    environment_digest,
)
from tests.events.given import (
    ELSEWHERE,
    ENVIRONMENT,
    FAILED_CHECKS,
    LATENCIES_S,
    LIMITS,
    Given,
    audited,
    failing,
    given,
    measured,
    opened,
    promoted,
    proposed,
    qualified,
    raised,
    root_audit,
    search,
    slowed,
    timed,
    tried,
    won,
)

FAILURES = [verdict for verdict in Correctness if verdict is not Correctness.VERIFIED]


def two_in_flight() -> Given:
    return search(parallel=2).and_then(tried(1), tried(2))


# --- the root ------------------------------------------------------------------------------------------------------


def test_a_verified_root_opens_the_search_with_its_own_objective() -> None:
    outcome = given(opened()).when(decider.complete_root_audit, root_audit())
    outcome.then(root_audit(), qualified())


def test_a_failing_root_stops_the_campaign() -> None:
    outcome = given(opened()).when(decider.complete_root_audit, root_audit(Correctness.INACCURATE))
    outcome.then_types(AuditCompleted, CampaignStopped)
    assert outcome.events is not None
    assert outcome.events[1] == CampaignStopped(reason=StopReason.ROOT_UNQUALIFIED, detail="inaccurate: ")


def test_a_root_is_audited_once() -> None:
    search().when(decider.complete_root_audit, root_audit()).then_refused("not waiting for an audit")


def test_a_root_has_no_incumbent() -> None:
    audit = root_audit().model_copy(update={"measurement": measured(9)})
    given(opened()).when(decider.complete_root_audit, audit).then_refused("no incumbent")


def test_the_search_is_closed_until_the_root_qualifies() -> None:
    given(opened()).when(decider.raise_opportunities, [raised("o0001")]).then_refused("opening")


# --- verified and admissible ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", FAILURES)
def test_a_correctness_failure_bars_from_frontier_and_parenthood(verdict: Correctness) -> None:
    story = search().and_then(tried(1)).decided(decider.complete_audit, failing("i0001", "a0001", verdict))
    assert list(story.state.frontier) == [ROOT]
    assert story.state.implementations["i0001"].standing == "failed"
    story.when(decider.raise_opportunities, [raised("o0002", "i0001")]).then_refused("cannot be a parent")
    again = story.and_then(raised("o0002"))
    again.when(decider.propose_action, proposed("a0002", "o0002", "i0001")).then_refused("cannot be a parent")


@pytest.mark.parametrize("performance", [Performance.NO_GAIN, Performance.UNDECIDED, Performance.OVER_LIMIT])
def test_a_slower_or_inadmissible_but_verified_one_is_a_parent(performance: Performance) -> None:
    slow = slowed(1.3) if performance is Performance.OVER_LIMIT else slowed()
    audit = audited("i0001", "a0001", performance, measured(1, ratio=1.2, upper_bound_ratio=1.25, **slow))
    story = search().and_then(tried(1)).decided(decider.complete_audit, audit).and_then(raised("o0002", "i0001"))
    assert list(story.state.frontier) == [ROOT, "i0001"]
    story.when(decider.propose_action, proposed("a0002", "o0002", "i0001")).then(proposed("a0002", "o0002", "i0001"))


def test_verified_means_every_check_passed() -> None:
    story = search().and_then(tried(1))
    story.when(decider.complete_audit, audited("i0001", "a0001", failures=FAILED_CHECKS)).then_refused(
        "every check passed"
    )
    story.when(decider.complete_audit, audited("i0001", "a0001", cases={})).then_refused("checks ran")


@pytest.mark.parametrize(
    "latencies_s",
    [{"prefill": 1.0}, {"prefill": 1.0, "other": 1.0}, LATENCIES_S | {"other": 1.0}],
    ids=["missing", "unknown", "one too many"],
)
def test_verified_means_every_workload_measured_once(latencies_s: dict[str, float]) -> None:
    story = search().and_then(tried(1))
    audit = audited("i0001", "a0001", latencies_s=latencies_s)
    story.when(decider.complete_audit, audit).then_refused("every workload is measured once")


def test_a_failed_audit_measures_nothing_and_uses_no_confirmation() -> None:
    audit = failing("i0001", "a0001").model_copy(update={"measurement": measured(7)})
    search().and_then(tried(1)).when(decider.complete_audit, audit).then_refused("only what is verified")


def test_an_audit_from_another_environment_is_refused() -> None:
    audit = audited("i0001", "a0001", environment=environment_digest(ELSEWHERE))
    search().and_then(tried(1)).when(decider.complete_audit, audit).then_refused("another environment")


def test_an_audit_needs_its_own_open_action() -> None:
    story = search().and_then(tried(1)).decided(decider.complete_audit, audited("i0001", "a0001")).and_then(tried(2))
    story.when(decider.complete_audit, audited("i0001", "a0001")).then_refused("not open")
    story.when(decider.complete_audit, audited("i0001", "a0002")).then_refused("did not make")
    story.when(decider.complete_audit, audited("i0001", None)).then_refused("not due")
    story.when(decider.complete_audit, audited("i0009", "a0002")).then_refused("no implementation")


# --- promotion -----------------------------------------------------------------------------------------------------


def test_a_win_over_the_best_is_promoted_with_the_confirmations_own_ratios() -> None:
    audit = won("i0001", "a0001", 1)
    search().and_then(tried(1)).when(decider.complete_audit, audit).then(audit, promoted("i0001"))


REFUSED_WINS: dict[str, tuple[dict[str, Any], str]] = {
    "no confirmation": ({"confirmation": None}, "needs a confirmation"),
    "alpha too large": ({"alpha": 0.03}, "alpha is at most"),
    "alpha of nothing": ({"alpha": 0.0}, "alpha is at most"),
    "no alpha": ({"alpha": None}, "alpha is at most"),
    "delta below half a percent": ({"delta_ratio": 0.004}, "delta is below"),
    "delta below three errors": ({"standard_error_ratio": 0.0025}, "delta is below"),
    "too noisy": ({"delta_ratio": 0.009, "upper_bound_ratio": 0.983}, "too noisy"),
    "bound not below the margin": ({"ratio": 0.99, "upper_bound_ratio": 0.995}, "the upper bound is not below"),
    "bound below the estimate": ({"ratio": 0.99}, "not below its estimate"),
    "a limit not kept": (slowed(1.05, 1.15), "over the limit on prefill"),
    "a limit not measured": (slowed(workloads=["prefill"]), "every workload is measured once"),
    "a limit of its own": (slowed(workloads=[*LIMITS, "other"]), "that the specification lacks"),
    "a ratio without its bound": ({"root_upper_bound_ratios": {}}, "has its upper bound"),
    "no comparison with the root": ({"speedup_ratio": None}, "compares with the root"),
    "unknown incumbent": ({"incumbent": "i0009"}, "was never the best"),
    "an incumbent that was never the best": ({"incumbent": "i0002"}, "was never the best"),
    "itself as incumbent": ({"incumbent": "i0001"}, "against itself"),
}


@pytest.mark.parametrize("name", REFUSED_WINS)
def test_a_promotion_rests_on_its_inequalities(name: str) -> None:
    changes, rule = REFUSED_WINS[name]
    audit = audited("i0001", "a0001", Performance.PROMOTABLE, measured(1, **changes))
    two_in_flight().when(decider.complete_audit, audit).then_refused(rule)


def test_on_a_noisy_machine_no_gain_counts_however_large() -> None:
    # given: a confirmation whose delta, 3 %, is wider than the largest
    noisy = measured(1, ratio=0.3, upper_bound_ratio=0.4, delta_ratio=0.03, standard_error_ratio=0.01)
    # when / then
    won_by_far = audited("i0001", "a0001", Performance.PROMOTABLE, noisy)
    two_in_flight().when(decider.complete_audit, won_by_far).then_refused("too noisy to decide")
    undecided = audited("i0001", "a0001", Performance.UNDECIDED, noisy)
    two_in_flight().when(decider.complete_audit, undecided).then(undecided)


def test_the_margin_may_lie_at_its_bounds() -> None:
    for delta, error in ((0.005, 0.0), (0.008, 0.008 / 3)):
        measurement = measured(1, delta_ratio=delta, standard_error_ratio=error)
        audit = audited("i0001", "a0001", Performance.PROMOTABLE, measurement)
        search().and_then(tried(1)).when(decider.complete_audit, audit).then(audit, promoted("i0001"))


def test_over_limit_names_a_limit_that_is_not_kept() -> None:
    audit = audited("i0001", "a0001", Performance.OVER_LIMIT, measured(1))
    search().and_then(tried(1)).when(decider.complete_audit, audit).then_refused("not kept")


def test_the_error_of_all_confirmations_together_stays_below_five_percent() -> None:
    spent = sum(decider.confirmation_alpha(k) for k in range(1, 100_000))
    assert 0.0499 < spent < 0.05


@pytest.mark.parametrize("k", [1, 3])
def test_confirmations_are_numbered_in_log_order(k: int) -> None:
    first = audited("i0001", "a0001", measurement=measured(1, ratio=1.0, upper_bound_ratio=1.01))
    story = two_in_flight().decided(decider.complete_audit, first)
    story.when(decider.complete_audit, won("i0002", "a0002", k)).then_refused("confirmation is number 2")
    story.when(decider.complete_audit, won("i0002", "a0002", 2)).then_types(AuditCompleted, ImplementationPromoted)


def test_of_two_winners_one_is_promoted_and_the_other_timed_again() -> None:
    story = two_in_flight().decided(decider.complete_audit, won("i0001", "a0001", 1))
    second = won("i0002", "a0002", 2)
    story.when(decider.complete_audit, second).then(second)
    story = story.decided(decider.complete_audit, second)
    assert story.state.best == "i0001"
    assert list(story.state.retimings) == ["i0002"]
    again = timed("i0002", Performance.PROMOTABLE, measured(3, "i0001"))
    story.when(decider.complete_timing, again).then(again, promoted("i0002", "i0001"))


def test_a_winner_timed_again_without_a_gain_is_settled() -> None:
    story = two_in_flight().decided(decider.complete_audit, won("i0001", "a0001", 1))
    story = story.decided(decider.complete_audit, won("i0002", "a0002", 2)).decided(
        decider.complete_timing, timed("i0002", measurement=measured(None, "i0001"))
    )
    assert (story.state.best, story.state.kappa, list(story.state.retimings)) == ("i0001", 1, [])
    story.when(decider.complete_timing, timed("i0002")).then_refused("not due to be timed again")


def test_a_winner_that_was_beaten_meanwhile_is_timed_once_more() -> None:
    story = search(parallel=3).and_then(tried(1), tried(2), tried(3))
    for number in (1, 2, 3):
        story = story.decided(decider.complete_audit, won(f"i000{number}", f"a000{number}", number))
    assert list(story.state.retimings) == ["i0002", "i0003"]
    story = story.decided(decider.complete_timing, timed("i0002", Performance.PROMOTABLE, measured(4, "i0001")))
    outdated = timed("i0003", Performance.PROMOTABLE, measured(5, "i0001"))
    story.when(decider.complete_timing, outdated).then(outdated)
    assert list(story.decided(decider.complete_timing, outdated).state.retimings) == ["i0003"]


def test_what_waits_to_be_timed_again_is_neither_archived_nor_abandoned() -> None:
    story = two_in_flight().decided(decider.complete_audit, won("i0001", "a0001", 1))
    story = story.decided(decider.complete_audit, won("i0002", "a0002", 2))
    story.when(decider.archive_branch, "i0002", "slow").then_refused("timed again")
    story.when(decider.abandon_branch, "tile", ["i0002"], "no").then_refused("timed again")


# --- kappa and infrastructure --------------------------------------------------------------------------------------


def test_kappa_counts_offspring_in_log_order_and_a_promotion_resets_it() -> None:
    story = search(parallel=9).and_then(*(tried(number) for number in range(1, 6)))
    counts = [story.state.kappa]
    for audit in (
        failing("i0003", "a0003"),
        audited("i0001", "a0001"),
        won("i0005", "a0005", 1),
        failing("i0002", "a0002", Correctness.HUNG),
    ):
        story = story.decided(decider.complete_audit, audit)
        counts.append(story.state.kappa)
    assert counts == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("verdict", list(Infrastructure))
def test_an_infrastructure_verdict_says_nothing_then_pauses(verdict: Infrastructure) -> None:
    audit = failing("i0001", "a0001", verdict)
    story = search().and_then(tried(1))
    story.when(decider.complete_audit, audit).then(audit)
    story = story.and_then(audit)
    assert (story.state.kappa, story.state.spent.audits, list(story.state.open_actions)) == (0, 0, ["a0001"])
    assert story.state.implementations["i0001"].verdict is None
    story.when(decider.complete_audit, audit).then_types(AuditCompleted, CampaignPaused)


def test_after_the_pause_it_is_tried_afresh() -> None:
    audit = failing("i0001", "a0001", Infrastructure.DEVICE_FAULT)
    story = search().and_then(tried(1), audit).decided(decider.complete_audit, audit)
    assert story.state.status == "paused"
    story = story.decided(decider.resume, ENVIRONMENT)
    story.when(decider.complete_audit, audit).then(audit)
    story = story.decided(decider.complete_audit, audited("i0001", "a0001"))
    assert story.state.kappa == 1


def test_an_environment_that_changed_may_say_so() -> None:
    audit = failing("i0001", "a0001", Infrastructure.ENVIRONMENT_CHANGED)
    audit = audit.model_copy(update={"environment": environment_digest(ELSEWHERE)})
    search().and_then(tried(1)).when(decider.complete_audit, audit).then(audit)


def test_an_infrastructure_verdict_on_the_root_pauses_too() -> None:
    audit = root_audit(Infrastructure.SANDBOX_REFUSED)
    story = given(opened()).decided(decider.complete_root_audit, audit)
    assert story.state.status == "opening"
    story = story.decided(decider.complete_root_audit, audit)
    assert story.state.status == "paused"
    story = story.decided(decider.resume, ENVIRONMENT)
    story.when(decider.complete_root_audit, root_audit()).then_types(AuditCompleted, RootQualified)


def test_a_resume_after_a_crash_gives_the_retry_back() -> None:
    audit = failing("i0001", "a0001", Infrastructure.DEVICE_FAULT)
    story = search().and_then(tried(1), audit, CampaignResumed())
    story.when(decider.complete_audit, audit).then(audit)
