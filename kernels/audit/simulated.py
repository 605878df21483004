"""A harness without compiler or clock: the same types at full size, deterministic from a seed.

For benchmarks of the engine and for tests that kill, resume and replay. Latencies come from a model; whatever is
random comes from (seed, candidate's digest, incumbent's digest), so the same audit gives the same bytes.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Self

import numpy as np

from kernelbraid.kernels.audit import plan, statistics
from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    ROOT,
    AuditOutcome,
    Blocks,
    Candidate,
    CheckResult,
    Correctness,
    Qualification,
    TimingOutcome,
    Verdict,
    capped_log,
)
from kernelbraid.kernels.operators.operator import Operator, Workload

LatencyModel = Callable[[Candidate, Workload], float]
"""Candidate and workload to seconds."""
FLOOR_NS = 12_000
CHECKS = ("outputs_written", "guards", "determinism", "agreement", "accuracy", "identity")


def digest_latency(candidate: Candidate, workload: Workload) -> float:
    """Seconds between 0.2 and 1.2 ms, by the workload's name and the candidate's digest (0.7 to 1.3 times)."""
    base = 2e-4 + 1e-3 * _unit(workload.name)
    return base * (0.7 + 0.6 * _unit(candidate.digest))


def never_fails(candidate: Candidate) -> Verdict | None:
    """Every candidate is verified."""
    return None


class SimulatedHarness:
    """Audits by arithmetic. `failure` injects a verdict; `delay_s` is slept once per audit or timing."""

    def __init__(
        self,
        operator: Operator,
        seed: int,
        latency_model: LatencyModel = digest_latency,
        failure: Callable[[Candidate], Verdict | None] = never_fails,
        delay_s: Callable[[Candidate], float] | None = None,
        noise_ratio: float = 0.002,
    ) -> None:
        self.operator = operator
        self._seed = seed
        self._latency = latency_model
        self._failure = failure
        self._delay_s = delay_s
        self._noise_ratio = noise_ratio
        self._weights = {workload.name: workload.weight for workload in operator.workloads}

    def environment(self) -> Environment:
        """A machine that does not exist."""
        return Environment(
            machine="simulated",
            cpu_model="simulated",
            simd_bits=256,
            l1_bytes=32768,
            compiler="simulated",
            compiler_version="1",
            flags=(),
            kernel_release="simulated",
            sandbox="simulated",
            harness_digest=_sha256("simulated harness"),
            toolchain_digest=_sha256("simulated toolchain"),
        )

    def qualify(self, root: Candidate, baselines: Sequence[Candidate]) -> Qualification:
        """The root against its baselines, by the model."""
        self._wait(root)
        if (verdict := self._failure(root)) is not None:
            return Qualification(self._failed(root, verdict), {})
        arms = {ROOT: root, **{baseline.name: baseline for baseline in baselines}}
        blocks = self._blocks(plan.qualification(tuple(arms)[1:]), arms, "qualification")
        outcome = replace(self._verified(root), confirmation=blocks, latencies_s=blocks.medians_s(ROOT))
        return Qualification(outcome, {name: blocks.medians_s(name) for name in tuple(arms)[1:]})

    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """A whole audit at full size."""
        self._wait(candidate)
        if (verdict := self._failure(candidate)) is not None:
            return self._failed(candidate, verdict)
        timed = self._timed(candidate, root, incumbent())
        return replace(
            self._verified(candidate),
            screen=timed.screen,
            confirmation=timed.confirmation,
            incumbent=timed.incumbent,
            latencies_s=timed.latencies_s,
            timing_s=timed.timing_s,
        )

    def time(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> TimingOutcome:
        """The timing alone."""
        self._wait(candidate)
        return self._timed(candidate, root, incumbent())

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> Self:
        """The harness itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to end."""

    def _wait(self, candidate: Candidate) -> None:
        if self._delay_s is not None:
            time.sleep(self._delay_s(candidate))

    def _timed(self, candidate: Candidate, root: Candidate, incumbent: Candidate) -> TimingOutcome:
        arms = {ROOT: root, INCUMBENT: incumbent, CANDIDATE: candidate}
        screened = self._blocks(plan.SCREEN, arms, "screen")
        confirmed = None
        if statistics.screen(screened, self._weights):
            confirmed = self._blocks(plan.CONFIRMATION, arms, "confirmation")
        latencies_s = (confirmed or screened).medians_s(CANDIDATE)
        seconds = 0.4 + (1.2 if confirmed else 0.0)
        return TimingOutcome(
            Correctness.VERIFIED, "simulated", screened, confirmed, incumbent.name, latencies_s, seconds
        )

    def _verified(self, candidate: Candidate) -> AuditOutcome:
        return AuditOutcome(
            verdict=Correctness.VERIFIED,
            evidence="simulated: every check passed",
            checks=tuple(CheckResult(name, True, 24, "") for name in CHECKS),
            resources=MappingProxyType({"text_bytes": 4096.0 + 64 * round(100 * _unit(candidate.digest))}),
            artifact_digest=_sha256(f"artifact of {candidate.digest}"),
            log=_log(candidate),
            build_s=0.4,
            check_s=0.3,
        )

    def _failed(self, candidate: Candidate, verdict: Verdict) -> AuditOutcome:
        evidence = f"simulated: {verdict.value} was injected"
        checks = (CheckResult("simulated", False, 1, evidence),)
        return AuditOutcome(verdict=verdict, evidence=evidence, checks=checks, log=_log(candidate), build_s=0.4)

    def _blocks(self, session: plan.Plan, arms: Mapping[str, Candidate], stage: str) -> Blocks:
        digests = [arms[arm].digest for arm in session.arms]
        rng = np.random.default_rng(int(_sha256(f"{self._seed} {stage} {' '.join(digests)}")[:16], 16))
        workloads = self.operator.workloads
        shape = (session.groups, session.blocks, len(workloads))
        return Blocks(
            workloads=tuple(workload.name for workload in workloads),
            calls=(1,) * len(workloads),
            paired=session.paired,
            samples_ns={arm: self._samples(session, arm, arms[arm], rng) for arm in session.arms},
            floor_ns=rng.integers(FLOOR_NS - 200, FLOOR_NS + 200, session.groups).astype(np.uint32),
            orders=rng.integers(0, len(session.paired), shape).astype(np.uint32),
        )

    def _samples(
        self, session: plan.Plan, arm: str, candidate: Candidate, rng: np.random.Generator
    ) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]":
        exact = np.array([self._latency(candidate, workload) * 1e9 for workload in self.operator.workloads])
        shape = (session.groups, session.blocks_of(arm), len(exact), session.samples_of(arm))
        restarts = rng.normal(0, self._noise_ratio, (session.groups, 1, len(exact), 1))
        noise = restarts + rng.normal(0, 2 * self._noise_ratio, shape)
        return (exact[None, None, :, None] * np.exp(noise) + FLOOR_NS).astype(np.uint32)


def _log(candidate: Candidate) -> bytes:
    costs = (_sha256(f"{candidate.digest} {line}")[:4] for line in range(120))
    lines = (f"candidate.c:{line}: note: vectorised, cost {cost}" for line, cost in enumerate(costs))
    return capped_log("\n".join(lines).encode())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _unit(text: str) -> float:
    return int(_sha256(text)[:8], 16) / 2**32
