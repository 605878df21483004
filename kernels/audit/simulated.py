"""A harness without compiler or clock: the same types at full size, deterministic from a seed.

For benchmarks of the engine and for tests that kill, resume and replay. Latencies come from a model; whatever is
random comes from (seed, candidate's digest, incumbent's digest), so the same audit gives the same bytes.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from kernelbraid.kernels.audit import plan, stages, statistics
from kernelbraid.kernels.audit.clock import joined
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
    process_of,
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
        self._bounds = {workload.name: workload.limit_ratio for workload in operator.workloads}

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
        blocks = self._session(arms).run(plan.qualification(tuple(arms)[1:]))
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
        session = self._session(arms)
        screened, confirmed = stages.screen(session, self._weights), None
        if statistics.screen(screened, self._weights):
            beside_root = root.digest != incumbent.digest
            confirmed = stages.confirm(session, self._weights, self._bounds, beside_root=beside_root)
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

    def _session(self, arms: Mapping[str, Candidate]) -> "SimulatedSession":
        digests = " ".join(candidate.digest for candidate in arms.values())
        rng = np.random.default_rng(int(_sha256(f"{self._seed} {digests}")[:16], 16))
        exact = {
            arm: [self._latency(one, workload) for workload in self.operator.workloads] for arm, one in arms.items()
        }
        return SimulatedSession(self.operator, exact, self._noise_ratio, rng)


@dataclass(frozen=True, slots=True)
class SimulatedSession:
    """A timing session by arithmetic. `latencies_s` has every workload's by arm."""

    operator: Operator
    latencies_s: Mapping[str, Sequence[float]]
    noise_ratio: float
    rng: np.random.Generator

    def run(self, plan: plan.Plan) -> Blocks:
        """A plan's groups."""
        paced = plan.paced(sum(self.latencies_s[plan.paired[0]]))
        workloads = self.operator.workloads
        shape = (paced.groups, paced.blocks, len(workloads))
        return Blocks(
            workloads=tuple(workload.name for workload in workloads),
            calls=(1,) * len(workloads),
            paired=paced.paired,
            samples_ns={arm: self._samples(paced, arm) for arm in paced.arms},
            floor_ns=self.rng.integers(FLOOR_NS - 200, FLOOR_NS + 200, paced.groups).astype(np.uint32),
            orders=self.rng.integers(0, len(paced.paired), shape).astype(np.uint32),
            twins=paced.twins,
            rule=paced.rule,
        )

    def more(self, plan: plan.Plan, blocks: Blocks, groups: int) -> Blocks:
        """The blocks with further groups."""
        return joined(blocks, self.run(replace(plan, groups=groups)))

    def _samples(self, plan: plan.Plan, arm: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]":
        exact_ns = np.array(self.latencies_s[arm]) * 1e9
        shape = (plan.groups, plan.blocks_of(arm), len(exact_ns), plan.samples_of(arm))
        restarts = self.rng.normal(0, self.noise_ratio, (plan.groups, 1, len(exact_ns), plan.twins))
        noise = restarts[..., process_of(shape[3], plan.twins)] + self.rng.normal(0, 2 * self.noise_ratio, shape)
        return (exact_ns[None, None, :, None] * np.exp(noise) + FLOOR_NS).astype(np.uint32)


def _log(candidate: Candidate) -> bytes:
    costs = (_sha256(f"{candidate.digest} {line}")[:4] for line in range(120))
    lines = (f"candidate.c:{line}: note: vectorised, cost {cost}" for line, cost in enumerate(costs))
    return capped_log("\n".join(lines).encode())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _unit(text: str) -> float:
    return int(_sha256(text)[:8], 16) / 2**32
