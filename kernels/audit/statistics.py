"""When is a candidate faster? Pure arithmetic over the blocks of one session, so that anyone can repeat it.

The unit is a group of blocks, because identical artifacts in new processes differ more than blocks inside one
set of processes do. A group's estimate is the logarithm of a ratio of weighted objectives; the interval is
Student's t over the groups' estimates, with a bootstrap of whole groups as a cross-check.

Blocks say by which of two rules their group's estimate and the margin are worked out. PAIRED: the median of the log
ratios of neighbours in a palindrome. LOWER_HALVES, a device's and that of older records: of each arm's samples in a
block the shorter half. What the margin comes from is told at `identical_error`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    LOWER_HALVES,
    PAIRED,
    ROOT,
    Blocks,
    Performance,
    median_of_taken,
    process_of,
)

LEAST_DELTA_RATIO = 0.005
MOST_DELTA_RATIO = 0.008
STANDARD_ERRORS_IN_DELTA = 3.0
LEAST_GROUPS = 8
"""Groups of a confirmation that may promote; with fewer, their own scatter says too little of the error."""
LATE_ALPHA = 5e-5
"""Fewer tell enough where even the bound at a thirtieth confirmation's alpha, which few groups make wide, clears the
margin: the looks at fewer than LEAST_GROUPS together err less often than one at a first confirmation's."""
LIKELY_ERRORS = 5.0
LIKELY_GROUPS = 24
"""A bound lies so many standard errors above its estimate at a late confirmation's alpha: to come that close to the
margin, and no closer, up to so many groups are worth their time."""
HOPEFUL_ERRORS = 2.0
"""Where so many of the errors that as many groups would leave are too many, not even a first confirmation's bound would
clear the margin: more groups would bring an estimate that lies on the margin no nearer to a decision."""
USUAL_BLOCK_ERROR = 0.012
"""A few groups may understate their error: the estimate of one block seldom scatters less than this."""
LIMIT_ALPHA = 0.025
BOOTSTRAP_ALPHA = 0.025
BOOTSTRAP_DRAWS = 2000
LARGEST_LOG = 700.0
"""Of a bound: three groups that have nothing in common reach what no float holds, at a late confirmation's alpha."""


@dataclass(frozen=True, slots=True)
class LimitBound:
    """One workload's slowdown against the root: the estimate, its 97.5 % upper bound and what is allowed."""

    workload: str
    ratio: float
    upper_bound_ratio: float
    limit_ratio: float

    @property
    def kept(self) -> bool:
        """Whether the limit holds at the upper bound."""
        return self.upper_bound_ratio <= self.limit_ratio

    @property
    def open(self) -> bool:
        """Whether the estimate keeps the limit and its bound does not, as more groups might."""
        return self.ratio <= self.limit_ratio < self.upper_bound_ratio


@dataclass(frozen=True, slots=True)
class Decision:
    """A confirmation in numbers. Ratios are candidate over incumbent unless they say otherwise."""

    performance: Performance
    ratio: float
    upper_bound_ratio: float
    delta_ratio: float
    standard_error_ratio: float
    """Of an A/A confirmation's estimate, from which delta comes; the interval rests on the candidate's own."""
    bootstrap_upper_ratio: float
    alpha: float
    limits: tuple[LimitBound, ...]
    objective_s: Mapping[str, float]
    """Weighted sum of median latencies by arm."""
    speedup_ratio: float
    """Root over candidate, in this confirmation's own blocks."""


def objective_s(blocks: Blocks, weights: Mapping[str, float], arm: str) -> float:
    """The weighted sum of the arm's median latencies, in seconds."""
    medians = blocks.medians_s(arm)
    return math.fsum(weights[name] * medians[name] for name in blocks.workloads)


def standard_error(blocks: Blocks, weights: Mapping[str, float]) -> float:
    """Standard error of log(candidate/incumbent) over the groups; infinite with fewer than two."""
    return _mean_and_error(group_log_ratios(blocks, weights, CANDIDATE, INCUMBENT))[1]


def needs_more_groups(blocks: Blocks, weights: Mapping[str, float], limits: Mapping[str, float]) -> bool:
    """Whether more groups may yet tell a gain: there seems to be one, and margin or interval are too wide for it.

    It stops as soon as the estimate misses the least margin (of few groups by its error at least, or a busy machine
    hides small gains), which can only ever keep a candidate from promotion, and goes on while few groups leave a
    workload's limit open.
    """
    if blocks.groups < LEAST_GROUPS and any(bound.open for bound in limit_bounds(blocks, limits)):
        return True
    mean, error = _mean_and_error(group_log_ratios(blocks, weights, CANDIDATE, INCUMBENT))
    if mean - (error if blocks.groups < LEAST_GROUPS else 0.0) >= math.log(1 - LEAST_DELTA_RATIO):
        return False
    margin = _delta_ratio(identical_error(blocks, weights))
    if margin > MOST_DELTA_RATIO:
        return True
    if blocks.groups < LEAST_GROUPS:
        error = max(student_t_quantile(1 - LATE_ALPHA, blocks.groups - 1) * error, LIKELY_ERRORS * _usual_error(blocks))
        return mean + error > math.log(1 - margin)
    likely = mean + HOPEFUL_ERRORS * error * math.sqrt(blocks.groups / LIKELY_GROUPS) < math.log(1 - margin)
    return likely and mean + LIKELY_ERRORS * error > math.log(1 - margin) and blocks.groups < LIKELY_GROUPS


def _usual_error(blocks: Blocks) -> float:
    """What an estimate of so many groups seldom errs less than, however well they agree."""
    return USUAL_BLOCK_ERROR / math.sqrt(blocks.groups * blocks.samples_ns[CANDIDATE].shape[1])


def needs_more_screening(blocks: Blocks, weights: Mapping[str, float]) -> bool:
    """Whether a screen of few groups leaves open which side of the least margin the candidate is on."""
    mean, error = _mean_and_error(group_log_ratios(blocks, weights, CANDIDATE, INCUMBENT))
    known = error if math.isfinite(error) else 0.0
    return abs(mean - math.log(1 - LEAST_DELTA_RATIO)) < 2 * max(known, _usual_error(blocks))


def screen(blocks: Blocks, weights: Mapping[str, float]) -> bool:
    """Whether a confirmation is worth its time: the estimate reaches the least margin."""
    mean, _ = _mean_and_error(group_log_ratios(blocks, weights, CANDIDATE, INCUMBENT))
    return mean < math.log(1 - LEAST_DELTA_RATIO)


@dataclass(frozen=True, slots=True)
class Screened:
    """A screen in numbers, candidate over incumbent: the estimate, its error and the estimate plus that error."""

    ratio: float
    upper_bound_ratio: float
    standard_error_ratio: float


def screened(blocks: Blocks, weights: Mapping[str, float]) -> Screened:
    """What a screen's blocks say; it can rule a gain out and never establishes one."""
    mean, error = _mean_and_error(group_log_ratios(blocks, weights, CANDIDATE, INCUMBENT))
    known = error if math.isfinite(error) else 0.0
    return Screened(math.exp(mean), math.exp(mean + known), known)


def decide(
    blocks: Blocks, weights: Mapping[str, float], limits: Mapping[str, float], alpha: float, seed: int
) -> Decision:
    """Settle a confirmation from its blocks, at the error that its campaign allows it.

    Promotable: delta is at most MOST_DELTA_RATIO, the upper bound at alpha and the bootstrap's lie below 1 - delta,
    and every limit holds. Undecided: there seems to be a gain and the margin is too wide for it, or the estimate
    clears the margin and the bound does not.
    """
    ratios = group_log_ratios(blocks, weights, CANDIDATE, INCUMBENT)
    mean, error = _mean_and_error(ratios)
    identical = identical_error(blocks, weights)
    delta = _delta_ratio(identical)
    upper = math.exp(min(LARGEST_LOG, mean + student_t_quantile(1 - alpha, len(ratios) - 1) * error))
    bootstrap = bootstrap_upper_ratio(ratios, seed)
    bounds = limit_bounds(blocks, limits)
    objectives = {arm: objective_s(blocks, weights, arm) for arm in blocks.arms}
    speedup = speedup_ratio(blocks, weights)
    performance = _performance(math.exp(mean), max(upper, bootstrap), delta, bounds)
    return Decision(performance, math.exp(mean), upper, delta, identical, bootstrap, alpha, bounds, objectives, speedup)


def speedup_ratio(blocks: Blocks, weights: Mapping[str, float]) -> float:
    """Root over candidate: the median over the groups of each workload's ratio, weighted by the root's objective.

    The root has one sample a group. A mean over the groups would let its disturbed samples make every candidate look
    faster: by 1.2 % on average, where 3 % of all samples are hit. So does the median of few single samples, by 2 %
    where a third of all is hit: under PAIRED as few of the candidate's are taken each time, and all those times count.
    """
    root = _root(blocks)
    if blocks.rule == PAIRED and root not in blocks.paired:
        ratios = np.exp(_median_log_ratios(blocks, CANDIDATE, root))
    else:
        ratios = np.exp(np.median(workload_log_ratios(blocks, CANDIDATE, root), axis=0))
    return 1 / float(ratios @ _shares(blocks, weights, root))


def _median_log_ratios(blocks: Blocks, numerator: str, denominator: str) -> NDArray[np.float64]:
    """[workloads]: log of the ratio of both arms' medians over the groups that they share, one sample of each group."""
    above, below = (blocks.latencies_ns(arm) for arm in (numerator, denominator))
    shared = min(len(above), len(below))
    return _medians_over_groups(above[:shared]) - _medians_over_groups(below[:shared])


def _medians_over_groups(latencies_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """[workloads]: the mean over the samples of a group of the logarithm's median over the groups."""
    by_workload = np.moveaxis(np.log(latencies_ns), 2, 0).reshape(latencies_ns.shape[2], len(latencies_ns), -1)
    return np.array([np.median(logs[:, ~np.isnan(logs).any(axis=0)], axis=0).mean() for logs in by_workload])


def _root(blocks: Blocks) -> str:
    """The arm that is the root: without one of its own the incumbent is."""
    return ROOT if ROOT in blocks.arms else INCUMBENT


def _delta_ratio(identical: float) -> float:
    """The margin that a gain must clear: three standard errors of an A/A confirmation, half a percent at least."""
    return max(LEAST_DELTA_RATIO, STANDARD_ERRORS_IN_DELTA * identical)


def identical_error(blocks: Blocks, weights: Mapping[str, float]) -> float:
    """Standard error of this confirmation's estimate had both arms been one artifact; infinite with one group.

    PAIRED: the smaller of two, each of which can only be too large. One is the estimate's own, which also has what sets
    two kernels apart, as that a neighbour on the core slows one of them more. The other comes from the two processes of
    each arm: one of either repeats the comparison of the others within the group, and half of what sets the two
    repetitions apart scatters as their mean does, or more where many samples are disturbed, as each repetition has half
    of them. A few groups more often scatter too little than too much, and the smaller of two more often still: it is
    corrected to be too small half of the time. Where there is one process of each arm, the estimate's own is all there
    is.

    LOWER_HALVES: the incumbent's two processes against each other, whose log ratio has twice the variance, or more, of
    an estimate for which both arms have two; not corrected, and the estimate's own error where that is smaller.
    """
    own = standard_error(blocks, weights)
    if blocks.rule == LOWER_HALVES:
        return own if blocks.twins < 2 else min(own, _twin_error(blocks, weights) / math.sqrt(2))
    degrees = max(1, blocks.groups - 1)
    if blocks.twins < 2:
        return own * _least_of_few_ratio(degrees)
    return min(own, _repetition_error(blocks, weights) / 2) * _least_of_few_ratio(degrees, 2 * degrees)


@lru_cache(maxsize=256)
def _least_of_few_ratio(*degrees: int) -> float:
    """A true standard deviation over the median of the least of several estimates of it, each with so many degrees of
    freedom: 1.19 of one with two, 1.05 with seven, 1.49 of the lesser of one with two and one with four.

    By Wilson and Hilferty's normal approximation of a variance's cube root.
    """
    low, high = 0.0, 2.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        normal = (NormalDist(1 - 2 / (9 * each), math.sqrt(2 / (9 * each))) for each in degrees)
        larger = math.prod(1 - one.cdf(middle) for one in normal)
        low, high = (middle, high) if larger > 0.5 else (low, middle)
    return float(low**-1.5)


def _repetition_error(blocks: Blocks, weights: Mapping[str, float]) -> float:
    """Standard error of the mean over the groups of one comparison's log ratio less its repetition's, each between one
    process of either arm: of both ways to match them, whose differences are independent, the root mean square."""
    candidate, incumbent = (_by_process(np.log(blocks.latencies_ns(arm))) for arm in (CANDIDATE, INCUMBENT))
    shares, errors = _shares(blocks, weights, INCUMBENT), []
    for match in (0, 1):
        one, other = (
            np.log(np.exp(median_of_taken(candidate[number] - incumbent[number ^ match], axis=(1, 3))) @ shares)
            for number in (0, 1)
        )
        errors.append(_mean_and_error(one - other)[1])
    return math.hypot(*errors) / math.sqrt(2)


def _by_process(samples: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The samples of an arm's first and second process, as `process_of` says: in each palindrome one of both."""
    taker = process_of(samples.shape[3], 2)
    return samples[..., taker == 0], samples[..., taker == 1]


def _twin_error(blocks: Blocks, weights: Mapping[str, float]) -> float:
    """Standard error of the mean over the groups of the log ratio of the incumbent's first process over its second."""
    first, second = map(_lower_half, _by_process(np.log(blocks.latencies_ns(INCUMBENT))))
    ratios = np.exp(np.median(first - second, axis=1)) @ _shares(blocks, weights, INCUMBENT)
    return _mean_and_error(np.log(ratios))[1]


def _performance(ratio: float, upper: float, delta: float, bounds: tuple[LimitBound, ...]) -> Performance:
    noisy = delta > MOST_DELTA_RATIO
    if noisy and ratio < 1 - LEAST_DELTA_RATIO:
        return Performance.UNDECIDED
    if not all(bound.kept for bound in bounds):
        return Performance.OVER_LIMIT
    if upper < 1 - delta and not noisy:
        return Performance.PROMOTABLE
    return Performance.UNDECIDED if ratio < 1 - delta else Performance.NO_GAIN


def group_log_ratios(
    blocks: Blocks, weights: Mapping[str, float], numerator: str, denominator: str
) -> NDArray[np.float64]:
    """[groups]: log of the numerator's weighted objective over the denominator's.

    Each workload's paired ratio counts by its share of the denominator's objective, which all groups share, so
    that a group in which one slow workload drifted does not change what the others are worth.
    """
    ratios = np.exp(workload_log_ratios(blocks, numerator, denominator))
    return np.asarray(np.log(ratios @ _shares(blocks, weights, denominator)))


def _shares(blocks: Blocks, weights: Mapping[str, float], arm: str) -> NDArray[np.float64]:
    """[workloads]: each one's part of the arm's objective; they sum to 1."""
    medians = blocks.medians_s(arm)
    objectives = np.array([weights[name] * medians[name] for name in blocks.workloads])
    return np.asarray(objectives / objectives.sum())


def workload_log_ratios(blocks: Blocks, numerator: str, denominator: str) -> NDArray[np.float64]:
    """[groups, workloads]: the log ratio that a group tells of each workload.

    PAIRED: the median over all pairs of neighbours in the group's palindromes, one sample of each arm, of the pair's
    log ratio. A machine that is slower for milliseconds slows both of a pair, and what hits one of them is no median.
    LOWER_HALVES: the median over the blocks of the ratio of the arms' shorter halves, as what disturbs a sample makes
    it longer. An arm outside the pair has fewer samples, and maybe fewer groups; against it the medians of both arms
    over each group that they share count, which favours neither.
    """
    above, below = (np.log(blocks.latencies_ns(arm)) for arm in (numerator, denominator))
    shared = min(len(above), len(below))
    above, below = above[:shared], below[:shared]
    if above.shape != below.shape:
        return median_of_taken(above, axis=(1, 3)) - median_of_taken(below, axis=(1, 3))
    if blocks.rule == PAIRED:
        return median_of_taken(above - below, axis=(1, 3))
    return np.asarray(np.median(_lower_half(above) - _lower_half(below), axis=1))


def workload_ratios(blocks: Blocks) -> Mapping[str, float]:
    """Candidate over incumbent by workload, the mean over the groups."""
    ratios = np.exp(workload_log_ratios(blocks, CANDIDATE, INCUMBENT).mean(axis=0))
    return dict(zip(blocks.workloads, ratios.tolist(), strict=True))


def _lower_half(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """[groups, blocks, workloads]: the mean of the lower half of the samples that were taken."""
    taken = np.count_nonzero(~np.isnan(samples), axis=3)
    lower = np.arange(samples.shape[3]) < np.maximum(1, taken // 2)[..., None]
    # NaN is sorted last.
    return np.asarray(np.sort(samples, axis=3).mean(axis=3, where=lower))


def limit_bounds(blocks: Blocks, limits: Mapping[str, float]) -> tuple[LimitBound, ...]:
    """Every workload's candidate over root with its upper bound; infinite with one group, which tells of no scatter."""
    ratios = workload_log_ratios(blocks, CANDIDATE, _root(blocks))
    means, uppers = ratios.mean(axis=0), np.full(ratios.shape[1], math.inf)
    if len(ratios) > 1:
        errors = ratios.std(axis=0, ddof=1) / math.sqrt(len(ratios))
        uppers = np.exp(means + student_t_quantile(1 - LIMIT_ALPHA, len(ratios) - 1) * errors)
    return tuple(
        LimitBound(name, ratio, upper, limits[name])
        for name, ratio, upper in zip(blocks.workloads, np.exp(means).tolist(), uppers.tolist(), strict=True)
    )


def bootstrap_upper_ratio(log_ratios: NDArray[np.float64], seed: int) -> float:
    """97.5 % upper bound of the mean's exponential, drawing whole groups with replacement."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(log_ratios), size=(BOOTSTRAP_DRAWS, len(log_ratios)))
    return math.exp(float(np.quantile(log_ratios[drawn].mean(axis=1), 1 - BOOTSTRAP_ALPHA)))


def _mean_and_error(log_ratios: NDArray[np.float64]) -> tuple[float, float]:
    if len(log_ratios) < 2:
        return float(log_ratios.mean()), math.inf
    return float(log_ratios.mean()), float(log_ratios.std(ddof=1) / math.sqrt(len(log_ratios)))


@lru_cache(maxsize=4096)
def student_t_quantile(probability: float, degrees: int) -> float:
    """Inverse of Student's t distribution, to about 1e-12 relative; `probability` inside (0, 1)."""
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError(f"no quantile at probability {probability} with {degrees} degrees of freedom")
    tail = min(probability, 1 - probability)
    if tail == 0.5:
        return 0.0
    low, high = 0.0, 1.0
    while _upper_tail(high, degrees) > tail:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _upper_tail(middle, degrees) > tail else (low, middle)
    return math.copysign((low + high) / 2, probability - 0.5)


def _upper_tail(t: float, degrees: int) -> float:
    return 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The denominator 1 + d1/(1 + d2/(1 + ...)), by Steed's forward recurrence in Lentz's stable form."""
    tiny = 1e-300
    value, upper, lower = 1.0, 1.0, 0.0
    for index in range(1, 1000):
        term = _beta_term(a, b, x, index)
        lower = 1 / ((1 + term * lower) or tiny)
        upper = (1 + term / upper) or tiny
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-16:
            break
    return value


def _beta_term(a: float, b: float, x: float, index: int) -> float:
    m = index // 2
    if index % 2:
        return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
