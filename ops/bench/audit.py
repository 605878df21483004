"""What the auditor is worth on this machine: false promotions, power, and how long an audit takes."""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory

from kernelbraid.agents.search import run
from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.decider import confirmation_alpha
from kernelbraid.events.search import ImplementationSubmitted
from kernelbraid.events.store import open_store
from kernelbraid.kernels.audit import statistics
from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.opening import open_harness
from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT, AuditOutcome, Candidate, Performance, TimingOutcome
from kernelbraid.kernels.operators.catalogue import Mechanism, apply, load_catalogue
from kernelbraid.kernels.operators.operator import Operator, Sources, load_operator

Figures = dict[str, object]

SMALL = "rms_norm"
SMALL_MECHANISM = "lanes_16"
"""What both arms of the small operator's comparisons have: a root of one running sum is no usual incumbent."""
TRUE_GAIN = 0.02
_CALIBRATION_PERMILLE = 140
_CALIBRATION_GROUPS = 120
_CALIBRATIONS = 5
_CALIBRATED = 0.0007
"""The gain that is made may miss the one that is wanted by so much, about its standard error in so many groups."""
_ROW = "    scale_row(n, row, inverse_rms("
_MORE = """    partial again = {{0}};
    for (int64_t j = 0; j + STEP <= n.hidden * {permille} / 1000; j += STEP)
        again = advance(again, n, row, j);
    __asm__ volatile("" : : "m"(again));
"""


Tell = Callable[[str], None]
"""Takes one line of progress."""


def silent(line: str) -> None:
    """For whom the figures are enough."""


def bench_audit(
    identical: int,
    trials: int,
    operators: tuple[str, ...],
    target: str = "cpu",
    campaign: int = 0,
    walk: bool = True,
    wall_s: float = math.inf,
    tell: Tell = silent,
) -> Figures:
    """Identical candidates, true gains of 2 %, and for each operator a greedy walk through its catalogue, then a
    campaign of so many audits as the planner orders them. No trial begins after `wall_s` seconds of them; `tell` is
    given a line for each.

    Raises ValueError when trials are asked for on another target than the CPU: the extra work is written in C.
    """
    if trials and target != "cpu":
        raise ValueError(f"a true gain is made for target cpu alone: ask for no trials on {target}")
    figures: Figures = {"cores": len(os.sched_getaffinity(0)), "load_before": round(os.getloadavg()[0], 2)}
    if identical or trials:
        with opened(SMALL, target, wall_s, tell) as bench:
            if identical:
                figures["identical"] = bench.trials(bench.usual, bench.usual, identical)
            if trials:
                figures["true_gain"] = bench.found(bench.usual, trials)
    for name in operators:
        if walk:
            with opened(name, target) as bench:
                figures[name] = bench.walk()
        if campaign:
            figures[f"{name}_campaign"] = bench_campaign(name, target, campaign)
    return figures | {"load_after": round(os.getloadavg()[0], 2)}


def bench_campaign(name: str, target: str, audits: int) -> Figures:
    """Seconds of a campaign's own audits, the root's left out: build, checks and timing, by what came of them.

    `elapsed` is what passed between an implementation's submission and the record of its audit, agents included.
    """
    with TemporaryDirectory(prefix="kernelbraid-bench-") as folder:
        store = open_store(f"sqlite:///{folder}/bench.db")
        campaign = run(name, store=store, target=target, audits=audits).campaign
        recorded = list(store.read(campaign))
    submitted = {
        one.event.implementation: one.recorded_at for one in recorded if isinstance(one.event, ImplementationSubmitted)
    }
    found = [
        (one.event, (one.recorded_at - submitted[one.event.implementation]).total_seconds())
        for one in recorded
        if isinstance(one.event, AuditCompleted) and one.event.implementation in submitted
    ]
    by_result: dict[str, list[float]] = {}
    for event, _ in found:
        by_result.setdefault((event.performance or event.verdict).value, []).append(_seconds(event))
    stages = {
        f"median_{stage}": round(median(getattr(event, stage) for event, _ in found), 3)
        for stage in ("build_s", "check_s", "timing_s")
    }
    return {
        "audits": len(found),
        "median_s": round(median(_seconds(event) for event, _ in found), 3),
        "median_elapsed_s": round(median(elapsed_s for _, elapsed_s in found), 3),
        **stages,
        "by_result": {
            result: {"audits": len(taken), "median_s": round(median(taken), 3)} for result, taken in by_result.items()
        },
        "audit_s": [round(_seconds(event), 2) for event, _ in found],
    }


def _seconds(event: AuditCompleted) -> float:
    return event.build_s + event.check_s + event.timing_s


@contextmanager
def opened(name: str, target: str, wall_s: float = math.inf, tell: Tell = silent) -> Iterator["Bench"]:
    """An operator on a harness of its own."""
    operator = load_operator(name, target)
    with open_harness(operator, target) as harness:
        root = Candidate("root", operator.root_sources(target))
        yield Bench(operator, harness, root, time.monotonic() + wall_s, tell)


@dataclass(frozen=True)
class Bench:
    """One operator on one harness."""

    operator: Operator
    harness: Auditing
    root: Candidate
    until_s: float = math.inf
    """No trial begins after this, by the monotonic clock."""
    tell: Tell = silent

    @property
    def mechanisms(self) -> Mapping[str, Mechanism]:
        """The catalogue by name."""
        return {mechanism.name: mechanism for mechanism in load_catalogue(self.operator, self.operator.target)}

    @property
    def usual(self) -> Candidate:
        """What incumbents are like; on the CPU the root is not, with its one running sum."""
        if self.operator.target != "cpu":
            return self.root
        return Candidate("usual", apply([self.mechanisms[SMALL_MECHANISM]], self.root.sources))

    @property
    def weights(self) -> Mapping[str, float]:
        """By workload."""
        return {workload.name: workload.weight for workload in self.operator.workloads}

    def trials(self, candidate: Candidate, incumbent: Candidate, count: int) -> Figures:
        """The same two candidates timed so often, or until time is up, each time as a campaign's first confirmation."""
        found = list(self._trials(candidate, incumbent, count))
        logs = [self._log_ratio(outcome) for outcome in found if outcome.screen is not None]
        performances = Counter(self._performance(outcome, 1) for outcome in found)
        tenths = Counter(self._performance(outcome, 10) for outcome in found)
        confirmed = [outcome.timing_s for outcome in found if outcome.confirmation is not None]
        screened = [outcome.timing_s for outcome in found if outcome.confirmation is None]
        return {
            "asked": count,
            "trials": len(found),
            "confirmed": len(confirmed),
            "performance": dict(performances),
            "promoted": performances[Performance.PROMOTABLE.value],
            "promoted_as_tenth_confirmation": tenths[Performance.PROMOTABLE.value],
            "median_ratio": round(math.exp(median(logs)), 5) if logs else None,
            "median_timing_s": round(median([*confirmed, *screened]), 3) if found else None,
            "median_confirmed_s": round(median(confirmed), 3) if confirmed else None,
            "median_screened_s": round(median(screened), 3) if screened else None,
        }

    def _trials(self, candidate: Candidate, incumbent: Candidate, count: int) -> Iterator[TimingOutcome]:
        for number in range(1, count + 1):
            if time.monotonic() > self.until_s:
                return
            outcome = self._timed(candidate, incumbent)
            ratio = "" if outcome.screen is None else f", ratio {math.exp(self._log_ratio(outcome)):.5f}"
            self.tell(f"{number} of {count}: {self._performance(outcome, 1)}{ratio}, {outcome.timing_s:.2f} s")
            yield outcome

    def found(self, faster: Candidate, count: int) -> Figures:
        """The same against an incumbent that does some work twice, set so that it takes 1 / (1 - TRUE_GAIN) as long."""
        slower, made = self._calibrated(faster)
        return {**made, **self.trials(faster, slower, count)}

    def _calibrated(self, faster: Candidate) -> tuple[Candidate, Figures]:
        """One that does so much work twice that the gain over it is the one that is wanted, and what it was.

        What more work costs is no straight line, and the clock that tells it is the audit's own, in many more groups
        than an audit has.
        """
        permille, made = _CALIBRATION_PERMILLE, Figures()
        for _ in range(_CALIBRATIONS):
            slower = with_more_work(faster, permille)
            gain, error = self._gain(faster, slower, _CALIBRATION_GROUPS)
            made = {"extra_work_permille": permille, "gain_ratio": round(gain, 5), "gain_error": round(error, 5)}
            if abs(gain - TRUE_GAIN) <= _CALIBRATED:
                break
            permille = round((permille + 2 * permille * TRUE_GAIN / gain) / 3)
        return slower, made

    def _gain(self, faster: Candidate, slower: Candidate, groups: int) -> tuple[float, float]:
        """What part of the slower one's time the faster one saves, and the standard error of that."""
        assert isinstance(self.harness, Harness), "true gains are made for target cpu"
        blocks = self.harness.compare(faster, slower, groups)
        ratios = statistics.group_log_ratios(blocks, self.weights, CANDIDATE, INCUMBENT)
        return 1 - math.exp(ratios.mean()), float(ratios.std(ddof=1)) / math.sqrt(len(ratios))

    def walk(self) -> Figures:
        """Every mechanism tried once on the best so far, as a greedy search would."""
        audits, profiles = [], list[Figures]()
        for found in self._audits():
            audits.append(found)
            profiles += self._profile()
        stages = {
            f"median_{stage}": round(median(getattr(found, stage) for _, found, _ in audits), 3)
            for stage in ("build_s", "check_s", "timing_s")
        }
        return {
            "audits": len(audits),
            "median_s": round(median(taken for taken, _, _ in audits), 3),
            **stages,
            "results": dict(Counter(result for _, _, result in audits)),
            "audit_s": [round(taken, 2) for taken, _, _ in audits],
            **({"profiles": profiles} if profiles else {}),
        }

    def _profile(self) -> list[Figures]:
        """Where the last audit's seconds went, by phase: seconds and how often. Only a device's harness tells."""
        return [dict(self.harness.profile.summary())] if isinstance(self.harness, DeviceHarness) else []

    def _audits(self) -> Iterator[tuple[float, AuditOutcome, str]]:
        """Seconds, outcome and result of each audit."""
        best, applied, confirmation = self.root, tuple[str, ...](), 1
        self._timed(self.root, self.root)
        untried = dict(self.mechanisms)
        while fitting := next((item for item in untried.values() if item.fits(applied)), None):
            del untried[fitting.name]
            candidate = Candidate(fitting.name, apply([fitting], best.sources))
            started = time.perf_counter()
            outcome = self.harness.audit(candidate, self.root, lambda incumbent=best: incumbent)  # type: ignore[misc]
            taken = time.perf_counter() - started
            result = self._performance(outcome, confirmation)
            confirmation += outcome.confirmation is not None
            if result == Performance.PROMOTABLE.value:
                best, applied = candidate, (*applied, fitting.name)
            yield taken, outcome, result

    def _timed(self, candidate: Candidate, incumbent: Candidate) -> TimingOutcome:
        return self.harness.time(candidate, self.root, lambda: incumbent)

    def _performance(self, outcome: AuditOutcome | TimingOutcome, confirmation: int) -> str:
        """The verdict of what failed, `screened` for what the screen ruled out, else the confirmation's performance."""
        if outcome.screen is None or outcome.verdict.value != "verified":
            return outcome.verdict.value
        if outcome.confirmation is None:
            return "screened"
        limits = {workload.name: workload.limit_ratio for workload in self.operator.workloads}
        alpha = confirmation_alpha(confirmation)
        return statistics.decide(outcome.confirmation, self.weights, limits, alpha, seed=confirmation).performance.value

    def _log_ratio(self, outcome: TimingOutcome) -> float:
        blocks = outcome.confirmation or outcome.screen
        if blocks is None:
            raise RuntimeError(f"nothing was timed: {outcome.verdict.value}: {outcome.evidence}")
        return float(statistics.group_log_ratios(blocks, self.weights, CANDIDATE, INCUMBENT).mean())


def with_more_work(candidate: Candidate, permille: int) -> Candidate:
    """The same results after adding up that part of every row's squares once more."""
    sources: Sources = {
        name: text.replace(_ROW, _MORE.format(permille=permille) + _ROW) for name, text in candidate.sources.items()
    }
    if sources == candidate.sources:
        raise ValueError(f"{candidate.name} has no place for more work")
    return Candidate(f"{candidate.name}+{permille}", sources)
