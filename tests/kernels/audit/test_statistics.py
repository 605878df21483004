"""The rule for "faster": exact quantiles, hardly a false promotion, and true small gains that are found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelbraid.kernels.audit import plan, stages, statistics
from kernelbraid.kernels.audit.clock import joined
from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    LOWER_HALVES,
    PAIRED,
    ROOT,
    Blocks,
    Performance,
    process_of,
)
from kernelbraid.kernels.audit.statistics import Decision, decide, student_t_quantile

WORKLOADS = tuple(f"w{index}" for index in range(12))
BASE_NS = np.geomspace(1e5, 4e6, len(WORKLOADS))
WEIGHTS = dict(zip(WORKLOADS, (1e6 / BASE_NS).tolist(), strict=True))
LIMITS = dict.fromkeys(WORKLOADS, 1.2)
FLOOR_NS = 8_000
EIGHT = replace(plan.CONFIRMATION, groups=8)
"""A confirmation of a fixed size."""

Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
"""Log-errors of samples of a shape."""


def student(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Heavy tails on both sides: Student's t with two degrees of freedom has no variance."""
    return rng.standard_t(2, shape) * 0.008


def contended(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """As measured beside a busy neighbour: a third of the samples is up to half longer, and a few are far longer."""
    slowed = rng.uniform(0, 0.4, shape) * (rng.random(shape) < 0.35)
    spikes = np.log1p(rng.pareto(1.5, shape)) * (rng.random(shape) < 0.03)
    return np.asarray(rng.normal(0, 0.01, shape) + slowed + spikes)


def quiet(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A machine of one's own."""
    return rng.normal(0, 0.004, shape)


@dataclass
class Simulated:
    """A session in which processes differ, the clock drifts from palindrome to palindrome, and samples are noisy.

    Latencies are in units of the incumbent's.
    """

    rng: np.random.Generator
    ratio: float = 1.0
    root_ratio: float = 3.0
    restart_noise: float = 0.004
    drift: float = 0.003
    noise: Noise = contended
    blocks: int = plan.CONFIRMATION.blocks

    def run(self, plan: plan.Plan) -> Blocks:
        """One plan's groups."""
        plan = replace(plan, blocks=min(plan.blocks, self.blocks))
        halves = 2 * plan.palindromes
        drift = self._drift((plan.groups, plan.blocks, len(WORKLOADS), halves))
        shape = (plan.groups, plan.blocks, len(WORKLOADS))
        return Blocks(
            workloads=WORKLOADS,
            calls=(1,) * len(WORKLOADS),
            paired=plan.paired,
            samples_ns=MappingProxyType({arm: self._samples(plan, arm, drift) for arm in plan.arms}),
            floor_ns=np.full(plan.groups, FLOOR_NS, np.uint32),
            orders=self.rng.integers(0, 2, shape).astype(np.uint32),
            twins=plan.twins,
            rule=plan.rule,
        )

    def more(self, plan: plan.Plan, blocks: Blocks, groups: int) -> Blocks:
        """Further groups."""
        return joined(blocks, self.run(replace(plan, groups=groups)))

    def _drift(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """An autoregressive walk over the halves of palindromes, which both arms of a half share."""
        steps = self.rng.normal(0, self.drift, shape)
        for half in range(1, shape[3]):
            steps[..., half] += 0.9 * steps[..., half - 1]
        return steps

    def _samples(self, plan: plan.Plan, arm: str, drift: NDArray[np.float64]) -> NDArray[np.uint32]:
        shape = (plan.groups, plan.blocks_of(arm), len(WORKLOADS), plan.samples_of(arm))
        restarts = self.rng.normal(0, self.restart_noise, (plan.groups, 1, len(WORKLOADS), plan.twins))
        noise = (
            restarts[..., process_of(shape[3], plan.twins)]
            + drift[:, : shape[1], :, : shape[3]]
            + self.noise(self.rng, shape)
        )
        exact_ns = BASE_NS[:, None] * {CANDIDATE: self.ratio, ROOT: self.root_ratio}.get(arm, 1.0)
        return np.asarray((exact_ns * np.exp(noise) + FLOOR_NS).clip(0, 4e9).astype(np.uint32))


def decided(blocks: Blocks, k: int = 1) -> Decision:
    """As the k-th confirmation of a campaign, whose alphas sum to 5 % over all k."""
    return decide(blocks, WEIGHTS, LIMITS, 0.05 / (k * (k + 1)), seed=7)


def audited(session: Simulated, k: int = 1) -> Performance:
    """Screen and confirmation as an audit runs them."""
    if not statistics.screen(stages.screen(session, WEIGHTS), WEIGHTS):
        return Performance.NO_GAIN
    return decided(stages.confirm(session, WEIGHTS, LIMITS), k).performance


# --- quantiles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.7062047362),
        (0.975, 2, 4.3026527297),
        (0.95, 5, 2.0150483733),
        (0.995, 7, 3.4994832974),
        (0.999, 9, 4.2968056627),
        (0.9995, 15, 4.0727651960),
        (0.975, 30, 2.0422724563),
        (0.975, 1000, 1.9623390808),
        (0.5, 4, 0.0),
        (0.025, 5, -2.5705818356),
    ],
)
def test_student_t_quantiles_agree_with_the_tables(probability: float, degrees: int, expected: float) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(expected, abs=2e-10, rel=2e-10)


@settings(deadline=None)
@given(st.floats(1e-9, 0.49), st.integers(1, 60))
def test_the_quantile_inverts_the_distribution_and_is_symmetric(tail: float, degrees: int) -> None:
    t = student_t_quantile(1 - tail, degrees)
    assert student_t_quantile(tail, degrees) == pytest.approx(-t, rel=1e-6)
    upper = 0.5 * statistics.incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))
    assert upper == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_a_quantile_outside_the_distribution_is_refused(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_t_quantile(probability, degrees)


@pytest.mark.parametrize(("degrees", "ratio"), [((2,), 1.20), ((7,), 1.05), ((2, 4), 1.49), ((7, 14), 1.18)])
def test_the_least_of_few_estimates_is_corrected_to_lie_in_the_middle(degrees: tuple[int, ...], ratio: float) -> None:
    # given many estimates of a standard deviation of one
    rng = np.random.default_rng(41)
    least = np.min([np.sqrt(rng.chisquare(each, 100_000) / each) for each in degrees], axis=0)
    # then
    assert statistics._least_of_few_ratio(*degrees) == pytest.approx(ratio, abs=0.01)
    assert np.median(least) * statistics._least_of_few_ratio(*degrees) == pytest.approx(1, rel=0.03)


def fewer_samples(blocks: Blocks, of: int) -> Blocks:
    """The blocks of an operator whose last workloads, so many, have long messages."""
    kept = {arm: samples.copy() for arm, samples in blocks.samples_ns.items()}
    for arm in blocks.paired:
        kept[arm][:, :, -of:, 4:] = 0
    return replace(blocks, samples_ns=MappingProxyType(kept))


# --- no false promotion --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [student, contended, quiet])
def test_hardly_any_confirmation_of_identical_artifacts_promotes(noise: Noise) -> None:
    """800 of them without a screen, at the weakest alpha, 2.5 %, under drift and heavy tails: the margin does more."""
    rng = np.random.default_rng(20)
    sessions = (Simulated(rng, noise=noise) for _ in range(800))
    found = [decided(stages.confirm(session, WEIGHTS, LIMITS)).performance for session in sessions]
    assert found.count(Performance.PROMOTABLE) <= 1


@pytest.mark.parametrize("noise", [student, contended])
def test_without_a_margin_the_interval_errs_as_often_as_alpha_says(noise: Noise) -> None:
    """Student's t on the groups' estimates: of 1,500 identical pairs 2.5 % lie above it, give or take three sigma."""
    rng = np.random.default_rng(23)
    above = sum(decided(Simulated(rng, noise=noise).run(EIGHT)).upper_bound_ratio < 1 for _ in range(1500))
    assert 0.025 * 1500 - 3 * 6.05 <= above <= 0.025 * 1500 + 3 * 6.05


@pytest.mark.parametrize("groups", [3, 8])
@pytest.mark.parametrize("noise", [student, contended, quiet])
def test_the_error_of_identical_artifacts_is_told_in_the_middle(noise: Noise, groups: int) -> None:
    """The scatter of many A/A estimates lies in the middle of what each of them says of it, also of few groups."""
    rng = np.random.default_rng(24)
    pairs = [decided(Simulated(rng, noise=noise).run(replace(EIGHT, groups=groups))) for _ in range(500)]
    scatter = np.std([np.log(decision.ratio) for decision in pairs])
    assert 0.92 <= np.median([decision.standard_error_ratio for decision in pairs]) / scatter <= 1.12


@pytest.mark.parametrize(("rule", "palindromes"), [(LOWER_HALVES, 4), (PAIRED, 8)])
def test_a_drift_sets_no_twins_apart(rule: int, palindromes: int) -> None:
    """They take turns in palindromes: a machine that slows down all the time slows both."""
    # given: processes that do not differ, on a core that gets slower in each group, by a percent or so with every half
    rng = np.random.default_rng(36)
    session = Simulated(rng, restart_noise=0.0, drift=0.0, noise=lambda _, shape: np.zeros(shape))
    blocks = session.run(replace(EIGHT, palindromes=palindromes, rule=rule))
    slower = np.exp(np.abs(rng.normal(0, 0.01, (8, 1, 1, 1))) * np.arange(2 * palindromes))
    swing = np.exp(
        rng.normal(0, 0.04, (8, 1, 1, 1))
    )  # The estimate's own error is then not what the margin comes from.
    samples = {arm: blocks.samples_ns[arm] * slower * (swing if arm == CANDIDATE else 1) for arm in blocks.paired}
    drifting = {**blocks.samples_ns, **{arm: values.astype(np.uint32) for arm, values in samples.items()}}
    # then
    assert statistics.identical_error(replace(blocks, samples_ns=MappingProxyType(drifting)), WEIGHTS) < 0.001


def test_workloads_with_fewer_samples_err_no_more_often() -> None:
    rng = np.random.default_rng(33)
    found = [decided(fewer_samples(Simulated(rng).run(EIGHT), of=4)) for _ in range(800)]
    assert sum(decision.upper_bound_ratio < 1 for decision in found) <= 0.025 * 800 + 3 * 4.4
    assert all(decision.performance is not Performance.PROMOTABLE for decision in found)


def test_a_sample_that_was_not_taken_counts_nowhere() -> None:
    # given: blocks of a quiet session, and the same with half as many samples of a workload
    whole = Simulated(np.random.default_rng(34), 0.9, noise=quiet).run(EIGHT)
    fewer = fewer_samples(whole, of=1)
    # then
    assert decided(fewer).ratio == pytest.approx(decided(whole).ratio, rel=0.002)
    assert decided(fewer).performance is Performance.PROMOTABLE
    assert fewer.medians_s(CANDIDATE)["w11"] == pytest.approx(whole.medians_s(CANDIDATE)["w11"], rel=0.01)
    assert decided(Blocks.from_bytes(fewer.to_bytes())) == decided(fewer)


@dataclass
class Unlucky(Simulated):
    """A quiet machine that places all processes of an arm so that they are 5 % slower, in this share of its groups."""

    share: float = 0.0

    def run(self, plan: plan.Plan) -> Blocks:
        """One plan's groups."""
        blocks = super().run(plan)
        slower = {arm: np.where(self.rng.random((plan.groups, 1, 1, 1)) < self.share, 1.05, 1.0) for arm in plan.paired}
        hit = {arm: (blocks.samples_ns[arm] * ratio).astype(np.uint32) for arm, ratio in slower.items()}
        return replace(blocks, samples_ns=MappingProxyType({**blocks.samples_ns, **hit}))


@pytest.mark.parametrize(("share", "most"), [(0.1, 0), (0.3, 4)])
def test_unlucky_processes_seldom_promote_identical_artifacts(share: float, most: int) -> None:
    """Of 200 that come to a confirmation."""
    session = Unlucky(np.random.default_rng(50), restart_noise=0.001, drift=0.002, noise=quiet, share=share)
    found: list[Performance] = []
    while len(found) < 200:
        if statistics.screen(stages.screen(session, WEIGHTS), WEIGHTS):
            found.append(decided(stages.confirm(session, WEIGHTS, LIMITS)).performance)
    assert found.count(Performance.PROMOTABLE) <= most


# --- power ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "k", "least"), [(0.02, 1, 0.9), (0.02, 10, 0.8), (0.05, 1, 0.97), (0.05, 30, 0.97)])
def test_a_true_gain_is_found(gain: float, k: int, least: float) -> None:
    """By the whole audit, at the first confirmation's alpha and at a late one's."""
    rng = np.random.default_rng(21)
    found = [audited(Simulated(rng, 1 - gain), k) for _ in range(100)]
    assert found.count(Performance.PROMOTABLE) >= 100 * least


def test_a_gain_of_one_percent_is_found_on_a_quiet_machine_and_seldom_on_a_busy_one() -> None:
    rng = np.random.default_rng(25)
    found = [audited(Simulated(rng, 0.99, restart_noise=0.001, drift=0.002, noise=quiet)) for _ in range(60)]
    assert found.count(Performance.PROMOTABLE) >= 54
    busy = [audited(Simulated(rng, 0.99)) for _ in range(60)]
    assert busy.count(Performance.PROMOTABLE) < 54


def test_a_large_gain_counts_though_the_kernels_differ_in_what_disturbs_them() -> None:
    """A neighbour slows one of the two more: the ratio scatters, and not the margin but the interval tells of it."""
    # given: sixteen groups in which the candidate alone is now and then slower by some percent
    rng = np.random.default_rng(26)
    blocks = Simulated(rng, 0.4).run(replace(EIGHT, groups=16))
    swing = np.exp(rng.normal(0, 0.04, (16, 1, 1, 1)))
    samples = {**blocks.samples_ns, CANDIDATE: (blocks.samples_ns[CANDIDATE] * swing).astype(np.uint32)}
    swinging = replace(blocks, samples_ns=MappingProxyType(samples))
    # when
    decision = decided(swinging, k=12)
    # then
    assert 3 * statistics.standard_error(swinging, WEIGHTS) > statistics.MOST_DELTA_RATIO >= decision.delta_ratio
    assert decision.upper_bound_ratio > 1.02 * decision.ratio
    assert decision.performance is Performance.PROMOTABLE


@pytest.mark.parametrize("noise", [student, contended])
def test_neighbours_in_a_palindrome_tell_more_than_each_arms_shorter_samples(noise: Noise) -> None:
    """Of the same samples, on a machine that is a fifth slower now and then, which both of a pair feel."""
    # given
    rng = np.random.default_rng(38)
    paired = Simulated(rng, noise=noise).run(replace(EIGHT, groups=100))
    slow = rng.random((100, 1, len(WORKLOADS), EIGHT.samples_of(CANDIDATE))).cumsum(axis=3) // 1 % 2
    samples = {
        arm: paired.samples_ns[arm] * (1 + 0.2 * slow[..., : paired.samples_ns[arm].shape[3]]) for arm in EIGHT.arms
    }
    paired = replace(paired, samples_ns=MappingProxyType({arm: s.astype(np.uint32) for arm, s in samples.items()}))
    # when
    errors = [statistics.standard_error(replace(paired, rule=rule), WEIGHTS) for rule in (PAIRED, LOWER_HALVES)]
    # then
    assert errors[0] < 0.9 * errors[1]


def test_work_that_is_left_out_in_few_messages_makes_no_gain() -> None:
    """Who skips a seventh of one message in eight: no gain by the median of pairs, and one by the shorter half."""
    # given
    rng = np.random.default_rng(39)
    blocks = Simulated(rng, restart_noise=0.0, drift=0.0, noise=quiet).run(EIGHT)
    skipped = np.where(rng.random(blocks.samples_ns[CANDIDATE].shape) < 0.125, 0.86, 1.0)
    samples = {**blocks.samples_ns, CANDIDATE: (blocks.samples_ns[CANDIDATE] * skipped).astype(np.uint32)}
    skipping = replace(blocks, samples_ns=MappingProxyType(samples))
    # then
    assert decided(skipping).ratio > 1 - statistics.LEAST_DELTA_RATIO
    assert decided(replace(skipping, rule=LOWER_HALVES)).ratio < 0.98


def test_a_record_without_a_rule_is_judged_by_the_one_that_was_there_before() -> None:
    older = Simulated(np.random.default_rng(40)).run(replace(EIGHT, rule=LOWER_HALVES)).to_bytes()
    assert b'"rule"' not in older
    # then
    assert Blocks.from_bytes(older).rule == LOWER_HALVES
    assert Blocks.from_bytes(older).to_bytes() == older
    with pytest.raises(ValueError, match="rule 2"):
        Blocks.from_bytes(replace(Blocks.from_bytes(older), rule=2).to_bytes())


# --- the stages ----------------------------------------------------------------------------------------------------


def test_the_screen_lets_a_gain_through_and_stops_most_of_the_rest() -> None:
    rng = np.random.default_rng(22)

    def passed(ratio: float) -> int:
        screens = (stages.screen(Simulated(rng, ratio), WEIGHTS) for _ in range(100))
        return sum(statistics.screen(blocks, WEIGHTS) for blocks in screens)

    assert passed(0.97) >= 97
    assert passed(1.0) <= 75
    assert passed(1.03) <= 10


def test_a_screen_ends_after_a_group_that_leaves_nothing_open() -> None:
    rng = np.random.default_rng(30)
    assert stages.screen(Simulated(rng, 1.1, noise=quiet), WEIGHTS).groups == 1
    assert stages.screen(Simulated(rng, 0.9, noise=quiet), WEIGHTS).groups == 1
    assert stages.screen(Simulated(rng, 0.995, noise=quiet), WEIGHTS).groups > 1


def test_few_groups_promote_only_what_a_late_confirmation_would_promote_too() -> None:
    """So that no rule of when to stop is a way around the alphas of a campaign."""
    rng = np.random.default_rng(31)
    found = [stages.confirm(Simulated(rng, 0.7, noise=student), WEIGHTS, LIMITS) for _ in range(40)]
    few = [blocks for blocks in found if blocks.groups < statistics.LEAST_GROUPS]
    assert len(few) > 20
    assert all(decided(blocks, k=30).performance is Performance.PROMOTABLE for blocks in few)


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 7), st.floats(0.4, 0.99), st.floats(0.0, 0.03))
def test_few_groups_that_agree_by_luck_do_not_tell_a_small_gain(
    groups: int, ratio: float, restart_noise: float
) -> None:
    """However little they scatter, an estimate of so few seldom errs less than the usual error of a block says."""
    session = Simulated(np.random.default_rng(35), ratio, restart_noise=restart_noise, drift=0.0, noise=quiet)
    blocks = session.run(replace(EIGHT, groups=groups))
    mean = statistics.group_log_ratios(blocks, WEIGHTS, CANDIDATE, INCUMBENT).mean()
    usual = statistics.LIKELY_ERRORS * statistics.USUAL_BLOCK_ERROR / np.sqrt(groups * EIGHT.blocks)
    near = np.log(1 - statistics.LEAST_DELTA_RATIO) > mean > np.log(1 - statistics.LEAST_DELTA_RATIO) - usual
    assert statistics.needs_more_groups(blocks, WEIGHTS, LIMITS) or not near


def test_a_confirmation_goes_on_while_few_groups_leave_a_limit_open() -> None:
    # given: a gain over all, and a workload whose estimate keeps its limit by less than it scatters
    session = Simulated(np.random.default_rng(32), 0.7, root_ratio=1.0, noise=quiet)
    open_limits = {**LIMITS, "w0": 0.705}
    # when
    settled, opened = (stages.confirm(session, WEIGHTS, limits) for limits in (LIMITS, open_limits))
    # then
    assert settled.groups == plan.CONFIRMATION.groups < opened.groups


def test_a_confirmation_ends_as_soon_as_there_is_no_gain() -> None:
    blocks = stages.confirm(Simulated(np.random.default_rng(27), 1.02), WEIGHTS, LIMITS)
    assert blocks.groups == plan.CONFIRMATION.groups
    assert decided(blocks).performance is Performance.NO_GAIN


def test_few_groups_rule_out_only_what_misses_the_margin_by_its_error() -> None:
    # given: on a busy machine, three groups of a small gain that happen to miss the least margin by less than they err
    rng, least = np.random.default_rng(37), np.log(1 - statistics.LEAST_DELTA_RATIO)
    for _ in range(200):
        blocks = Simulated(rng, 0.98, restart_noise=0.03).run(replace(EIGHT, groups=3))
        mean = statistics.group_log_ratios(blocks, WEIGHTS, CANDIDATE, INCUMBENT).mean()
        if least <= mean < least + statistics.standard_error(blocks, WEIGHTS):
            break
    # then
    assert statistics.needs_more_groups(blocks, WEIGHTS, LIMITS)
    assert not statistics.needs_more_groups(
        Simulated(rng, 1.02, noise=quiet).run(replace(EIGHT, groups=3)), WEIGHTS, LIMITS
    )


def test_a_confirmation_takes_more_groups_until_its_margin_is_small_enough() -> None:
    def groups(seed: int, gain: float, noisy: bool) -> Blocks:
        still = Simulated(np.random.default_rng(seed), 1 - gain, restart_noise=0.001, drift=0.002, noise=quiet)
        return stages.confirm(replace(still, restart_noise=0.04) if noisy else still, WEIGHTS, LIMITS)

    few, small, many = (groups(28, gain, noisy) for gain, noisy in ((0.2, False), (0.01, False), (0.2, True)))
    assert few.groups == plan.CONFIRMATION.groups
    assert few.groups < small.groups <= statistics.LEAST_GROUPS
    assert statistics.LEAST_GROUPS < many.groups <= plan.CONFIRMATION.most_groups
    assert len(many.samples_ns[ROOT]) == plan.BESIDE_GROUPS


# --- the rule ------------------------------------------------------------------------------------------------------


def test_a_slower_candidate_is_no_gain() -> None:
    """Also where samples are hit hard."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        assert decided(Simulated(rng, 1.05, noise=quiet).run(EIGHT)).performance is Performance.NO_GAIN
        assert decided(Simulated(rng, 1.05).run(EIGHT)).performance is Performance.NO_GAIN


def test_too_much_noise_leaves_any_gain_undecided() -> None:
    blocks = stages.confirm(Simulated(np.random.default_rng(2), 0.3, restart_noise=0.15), WEIGHTS, LIMITS)
    assert blocks.groups == plan.CONFIRMATION.most_groups
    assert decided(blocks).delta_ratio > statistics.MOST_DELTA_RATIO
    assert decided(blocks).performance is Performance.UNDECIDED


def test_a_gain_inside_the_margin_is_no_gain_and_just_outside_it_undecided() -> None:
    rng = np.random.default_rng(3)
    inside = Simulated(rng, 0.997, restart_noise=0.0005, drift=0.001, noise=quiet).run(EIGHT)
    assert decided(inside).performance is Performance.NO_GAIN
    edge = decided(Simulated(rng, 0.985, noise=quiet).run(EIGHT), k=30_000)
    assert edge.ratio < 1 - edge.delta_ratio < edge.upper_bound_ratio
    assert edge.performance is Performance.UNDECIDED


def test_a_limit_holds_only_at_its_upper_bound() -> None:
    """A gain over all is over the limit when one workload is slower than the root allows."""
    blocks = Simulated(np.random.default_rng(4), 0.8, root_ratio=1.0, noise=quiet).run(EIGHT)
    samples = dict(blocks.samples_ns)
    samples[CANDIDATE] = samples[CANDIDATE].copy()
    samples[CANDIDATE][:, :, 0] = (samples[CANDIDATE][:, :, 0] * 1.6).astype(np.uint32)
    decision = decided(replace(blocks, samples_ns=MappingProxyType(samples)))
    assert decision.performance is Performance.OVER_LIMIT
    broken = [bound for bound in decision.limits if not bound.kept]
    assert [bound.workload for bound in broken] == ["w0"]
    assert broken[0].ratio < broken[0].upper_bound_ratio


def test_one_group_bounds_no_slowdown() -> None:
    """A screen may be that short; its estimates are shown all the same."""
    bounds = statistics.limit_bounds(Simulated(np.random.default_rng(10), 0.5).run(replace(EIGHT, groups=1)), LIMITS)
    assert all(bound.ratio < 1 and not bound.kept for bound in bounds)


def test_the_speed_up_is_the_roots_objective_over_the_candidates() -> None:
    decision = decided(Simulated(np.random.default_rng(5), 0.5, noise=quiet).run(EIGHT))
    assert decision.speedup_ratio == pytest.approx(6.0, rel=0.02)
    assert decision.objective_s[ROOT] / decision.objective_s[CANDIDATE] == pytest.approx(6.0, rel=0.02)
    assert set(decision.objective_s) == {ROOT, INCUMBENT, CANDIDATE}


def test_disturbed_samples_of_the_root_flatter_no_candidate() -> None:
    rng = np.random.default_rng(8)
    found = [decided(Simulated(rng, 0.5).run(EIGHT)).speedup_ratio for _ in range(40)]
    assert np.mean(found) == pytest.approx(6.0, rel=0.02)


def test_without_a_root_arm_the_incumbent_is_the_root() -> None:
    blocks = stages.confirm(Simulated(np.random.default_rng(9), 0.5), WEIGHTS, LIMITS, beside_root=False)
    assert ROOT not in blocks.arms
    decision = decided(blocks)
    assert decision.performance is Performance.PROMOTABLE
    assert decision.speedup_ratio == pytest.approx(1 / decision.ratio, rel=0.01)
    assert {bound.workload for bound in decision.limits} == set(WORKLOADS)


def test_a_decision_repeats_exactly_from_stored_blocks() -> None:
    blocks = stages.confirm(Simulated(np.random.default_rng(6), 0.95), WEIGHTS, LIMITS)
    assert decided(Blocks.from_bytes(blocks.to_bytes())) == decided(blocks)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(1, 100), st.integers(0, 2**32))
def test_a_promotion_satisfies_its_own_inequalities(ratio: float, k: int, seed: int) -> None:
    decision = decided(stages.confirm(Simulated(np.random.default_rng(seed), ratio), WEIGHTS, LIMITS), k)
    assert decision.ratio <= decision.upper_bound_ratio
    if decision.performance is Performance.PROMOTABLE:
        assert decision.delta_ratio <= statistics.MOST_DELTA_RATIO
        assert decision.upper_bound_ratio < 1 - decision.delta_ratio
        assert decision.delta_ratio >= max(0.005, 3 * decision.standard_error_ratio)
        assert all(bound.upper_bound_ratio <= bound.limit_ratio for bound in decision.limits)


def test_groups_that_have_nothing_in_common_give_a_bound_and_no_overflow() -> None:
    # given a candidate that was ten thousand times slower in the last of three groups, at a hundredth confirmation
    session = Simulated(np.random.default_rng(0), noise=quiet)
    blocks = session.run(replace(plan.CONFIRMATION, groups=3))
    samples = {arm: np.array(values) for arm, values in blocks.samples_ns.items()}
    samples[CANDIDATE][2] = np.minimum(samples[CANDIDATE][2] * 1e4, 4e9)
    uneven = replace(blocks, samples_ns=MappingProxyType(samples))
    # when
    decision = decide(uneven, WEIGHTS, LIMITS, 0.05 / (300 * 301), seed=0)
    # then
    assert np.isfinite(decision.upper_bound_ratio)
    assert decision.performance is not Performance.PROMOTABLE
