"""The rule for "faster": exact quantiles, no false promotion, and a true small gain that is found."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbraid.kernels.audit import plan, statistics
from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT, ROOT, Blocks, Performance
from kernelbraid.kernels.audit.statistics import Decision, decide, student_t_quantile

WORKLOADS = tuple(f"w{index}" for index in range(12))
WEIGHTS = {name: 1.0 + index for index, name in enumerate(WORKLOADS)}
LIMITS = dict.fromkeys(WORKLOADS, 1.2)
FLOOR_NS = 8_000


def simulated(
    rng: np.random.Generator,
    ratio: float = 1.0,
    session: plan.Plan = plan.CONFIRMATION,
    restart_noise: float = 0.004,
    sample_noise: float = 0.006,
    spikes: float = 0.03,
) -> Blocks:
    """A session as this machine gives it: restarts differ, the clock drifts, and now and then a sample is hit hard."""
    base_ns = np.geomspace(2e5, 4e6, len(WORKLOADS))[None, None, :, None]
    drift = np.cumsum(rng.normal(0, 0.01, (session.groups, session.blocks, 1, 1)), axis=1)
    samples = {}
    for arm in session.arms:
        shape = (session.groups, session.blocks_of(arm), len(WORKLOADS), session.samples_of(arm))
        restart = rng.normal(0, restart_noise, (session.groups, 1, len(WORKLOADS), 1))
        noise = restart + rng.standard_t(3, shape) * sample_noise + drift[:, : shape[1]]
        spike = rng.pareto(1.5, shape) * (rng.random(shape) < spikes)
        exact = base_ns * (ratio if arm == CANDIDATE else 1.0)
        samples[arm] = (exact * np.exp(noise) * (1 + spike) + FLOOR_NS).clip(0, 4e9).astype(np.uint32)
    return Blocks(
        workloads=WORKLOADS,
        calls=(1,) * len(WORKLOADS),
        paired=session.paired,
        samples_ns=MappingProxyType(samples),
        floor_ns=np.full(session.groups, FLOOR_NS, np.uint32),
        orders=rng.integers(0, 2, (session.groups, session.blocks, len(WORKLOADS))).astype(np.uint32),
    )


def decided(blocks: Blocks, k: int = 1) -> Decision:
    """As the k-th confirmation of a campaign, whose alphas sum to 5 % over all k."""
    return decide(blocks, WEIGHTS, LIMITS, 0.05 / (k * (k + 1)), seed=7)


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


def test_identical_pairs_are_never_promoted() -> None:
    """2,000 confirmations of identical artifacts, each with the weakest alpha, under drift and heavy tails."""
    rng = np.random.default_rng(20)
    found = [decided(simulated(rng)).performance for _ in range(2000)]
    assert found.count(Performance.PROMOTABLE) == 0


def test_a_gain_of_three_percent_is_found() -> None:
    """In a confirmation that has taken all the groups it may, as a noisy one does."""
    rng = np.random.default_rng(21)
    longest = replace(plan.CONFIRMATION, groups=plan.CONFIRMATION.most_groups)
    found = [decided(simulated(rng, 0.97, longest), k=12) for _ in range(60)]
    assert sum(decision.performance is Performance.PROMOTABLE for decision in found) >= 54
    assert np.median([decision.ratio for decision in found]) == pytest.approx(0.97, abs=0.002)


def test_the_screen_lets_a_gain_through_and_stops_most_of_the_rest() -> None:
    rng = np.random.default_rng(22)

    def passed(ratio: float) -> int:
        screens = (simulated(rng, ratio, plan.SCREEN) for _ in range(100))
        return sum(statistics.screen(blocks, WEIGHTS) for blocks in screens)

    assert passed(0.97) >= 97
    assert passed(1.0) <= 40
    assert passed(1.03) <= 2


def test_a_slower_candidate_is_no_gain() -> None:
    """Also where samples are hit hard; a limit's upper bound may be broken too then, for the root has few samples."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        assert decided(simulated(rng, ratio=1.05, spikes=0.0)).performance is Performance.NO_GAIN
        disturbed = decided(simulated(rng, ratio=1.05)).performance
        assert disturbed in (Performance.NO_GAIN, Performance.OVER_LIMIT)


def test_too_much_noise_leaves_it_undecided() -> None:
    blocks = simulated(np.random.default_rng(2), ratio=0.9, restart_noise=0.1)
    assert statistics.needs_more_groups(blocks, WEIGHTS)
    assert decided(blocks).performance is Performance.UNDECIDED


def test_a_gain_inside_the_margin_is_no_gain_and_just_outside_it_undecided() -> None:
    rng = np.random.default_rng(3)
    quiet = {"restart_noise": 0.0005, "sample_noise": 0.0005, "spikes": 0.0}
    assert decided(simulated(rng, ratio=0.997, **quiet)).performance is Performance.NO_GAIN
    edge = decided(simulated(rng, ratio=0.985, restart_noise=0.004, sample_noise=0.002, spikes=0.0), k=30_000)
    assert edge.ratio < 1 - edge.delta_ratio < edge.upper_bound_ratio
    assert edge.performance is Performance.UNDECIDED


def test_a_limit_holds_only_at_its_upper_bound() -> None:
    """A gain over all is over the limit when one workload is slower than the root allows."""
    blocks = simulated(np.random.default_rng(4), ratio=0.8)
    samples = dict(blocks.samples_ns)
    samples[CANDIDATE] = samples[CANDIDATE].copy()
    samples[CANDIDATE][:, :, 0] = (samples[CANDIDATE][:, :, 0] * 1.6).astype(np.uint32)
    decision = decided(replace(blocks, samples_ns=MappingProxyType(samples)))
    assert decision.performance is Performance.OVER_LIMIT
    broken = [bound for bound in decision.limits if not bound.kept]
    assert [bound.workload for bound in broken] == ["w0"]
    assert broken[0].ratio < broken[0].upper_bound_ratio


def test_the_speed_up_is_the_roots_objective_over_the_candidates() -> None:
    decision = decided(simulated(np.random.default_rng(5), ratio=0.5))
    assert decision.speedup_ratio == pytest.approx(2.0, rel=0.02)
    assert decision.objective_s[ROOT] / decision.objective_s[CANDIDATE] == pytest.approx(2.0, rel=0.02)
    assert set(decision.objective_s) == {ROOT, INCUMBENT, CANDIDATE}


def test_disturbed_samples_of_the_root_flatter_no_candidate() -> None:
    rng = np.random.default_rng(8)
    found = [decided(simulated(rng, ratio=0.5, spikes=0.05)).speedup_ratio for _ in range(40)]
    assert np.mean(found) == pytest.approx(2.0, rel=0.004)


def test_a_decision_repeats_exactly_from_stored_blocks() -> None:
    blocks = simulated(np.random.default_rng(6), ratio=0.95)
    assert decided(Blocks.from_bytes(blocks.to_bytes())) == decided(blocks)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(1, 100), st.integers(0, 2**32))
def test_a_promotion_satisfies_its_own_inequalities(ratio: float, k: int, seed: int) -> None:
    decision = decided(simulated(np.random.default_rng(seed), ratio), k)
    assert decision.ratio <= decision.upper_bound_ratio
    if decision.performance is Performance.PROMOTABLE:
        noisy = decision.delta_ratio > statistics.MOST_DELTA_RATIO
        margin = decision.delta_ratio * (statistics.NOISY_DELTAS if noisy else 1)
        assert decision.upper_bound_ratio < 1 - margin
        assert decision.delta_ratio >= max(0.005, 3 * decision.standard_error_ratio)
        assert all(bound.upper_bound_ratio <= bound.limit_ratio for bound in decision.limits)
