"""What an audit found: two closed enums of verdicts, the checks with their evidence, and every timed sample.

Nothing here decides; `statistics` does, from the blocks, and anyone can repeat it.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.operator import Sources

ROOT = "root"
INCUMBENT = "incumbent"
CANDIDATE = "candidate"
LOG_LIMIT_BYTES = 8192
LONGEST_NS = 2**32 - 1
"""The longest sample that blocks can hold; what took longer counts as this, which is no gain either."""
LOWER_HALVES, PAIRED = 1, 3
"""The two rules of `statistics`: an arm's shorter samples of a block against the other's, or neighbours in a palindrome
against each other. Blocks of rule 2, whose margin was another, are no longer judged."""


class Correctness(StrEnum):
    """The candidate's own result: `verified`, or the one failure that ended the audit."""

    VERIFIED = "verified"
    BUILD_FAILED = "build_failed"
    BUILD_TIMEOUT = "build_timeout"
    LOAD_FAILED = "load_failed"
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "out_of_memory"
    FORBIDDEN_CALL = "forbidden_call"
    OUTPUT_NOT_WRITTEN = "output_not_written"
    GUARD_OVERWRITTEN = "guard_overwritten"
    INPUT_WRITTEN = "input_written"
    DISAGREEMENT = "disagreement"
    INACCURATE = "inaccurate"
    NONDETERMINISTIC = "nondeterministic"
    WRONG_ARTIFACT = "wrong_artifact"
    FASTER_THAN_POSSIBLE = "faster_than_possible"
    EXITED_EARLY = "exited_early"
    OUTPUT_FLOOD = "output_flood"
    LATE_WRITE = "late_write"
    CLOCK_DISPUTED = "clock_disputed"
    FORBIDDEN_LIBRARY = "forbidden_library"
    FORGED_REPLY = "forged_reply"


class Infrastructure(StrEnum):
    """Why no verdict about the candidate was possible."""

    SANDBOX_REFUSED = "sandbox_refused"
    ENVIRONMENT_CHANGED = "environment_changed"
    DEVICE_FAULT = "device_fault"


class Performance(StrEnum):
    """What a confirmation says of a verified candidate against the incumbent."""

    PROMOTABLE = "promotable"
    NO_GAIN = "no_gain"
    UNDECIDED = "undecided"
    OVER_LIMIT = "over_limit"


Verdict = Correctness | Infrastructure


@dataclass(frozen=True, slots=True)
class Candidate:
    """Sources to build. `flags` come after the toolchain's fixed ones and are for baselines alone."""

    name: str
    sources: Sources
    flags: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over file names, texts and flags; the name does not count."""
        body = json.dumps([sorted(self.sources.items()), self.flags], ensure_ascii=False)
        return hashlib.sha256(body.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One kind of check over all its cases; the evidence of a failure names the first one that failed."""

    name: str
    passed: bool
    cases: int
    evidence: str


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Every sample of one timing session, in nanoseconds a message, with the floor beside it.

    A group is one set of fresh processes. In a block each workload is timed in palindromes of the paired arms
    (ABBA or BAAB with two), so `samples_ns[arm]` is uint32 [groups, blocks, workloads, samples] with two samples
    a palindrome for a paired arm and one for an arm outside the pair, which may have fewer blocks, and may be timed
    in the first groups alone. A workload whose message is long has fewer samples: 0 stands where none was taken.
    """

    workloads: tuple[str, ...]
    calls: tuple[int, ...]
    """Calls released by one message, by workload."""
    paired: tuple[str, ...]
    """The arms of the palindrome."""
    samples_ns: Mapping[str, NDArray[np.uint32]]
    floor_ns: NDArray[np.uint32]
    """[groups]: the median message of an empty candidate in that group's session."""
    orders: NDArray[np.uint32]
    """[groups, blocks, workloads]: which permutation of `paired` (in lexicographic order) opened the palindrome."""
    twins: int = 1
    """Processes of each paired arm in a group; `process_of` says which of them took a sample."""
    rule: int = LOWER_HALVES
    """How estimate and margin come from the samples; what was recorded before there were two says none."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all timed arms."""
        return tuple(self.samples_ns)

    @property
    def groups(self) -> int:
        """Sets of fresh processes."""
        return len(self.floor_ns)

    def latencies_ns(self, arm: str) -> NDArray[np.float64]:
        """One call's latency [groups, blocks, workloads, samples]: floor subtracted, at least 1 ns a message.

        NaN where no sample was taken.
        """
        counted = self.samples_ns[arm]
        samples = np.maximum(counted.astype(np.float64) - self.floor_ns[: len(counted), None, None, None], 1.0)
        return np.asarray(np.where(counted > 0, samples, np.nan) / np.asarray(self.calls)[None, None, :, None])

    @property
    def totals_ns(self) -> Mapping[str, int]:
        """All samples of each arm added up, which no edit of one of them leaves as it is."""
        return {arm: int(samples.sum(dtype=np.uint64)) for arm, samples in self.samples_ns.items()}

    def medians_s(self, arm: str) -> Mapping[str, float]:
        """The arm's median latency in seconds, by workload."""
        by_workload = np.moveaxis(self.latencies_ns(arm), 2, 0).reshape(len(self.workloads), -1)
        medians = median_of_taken(by_workload, axis=1) * 1e-9
        return MappingProxyType(dict(zip(self.workloads, medians.tolist(), strict=True)))

    def to_bytes(self) -> bytes:
        """A small JSON header, then all samples as byte planes, which compress well."""
        arrays = [*self.samples_ns.values(), self.floor_ns, self.orders]
        header = {
            "workloads": self.workloads,
            "calls": self.calls,
            "paired": self.paired,
            "twins": self.twins,
            **({} if self.rule == LOWER_HALVES else {"rule": self.rule}),
            "shapes": {arm: samples.shape for arm, samples in self.samples_ns.items()},
        }
        flat = np.concatenate([np.ascontiguousarray(array, "<u4").ravel() for array in arrays])
        encoded = json.dumps(header, separators=(",", ":")).encode()
        return len(encoded).to_bytes(4, "little") + encoded + flat.view(np.uint8).reshape(-1, 4).T.tobytes()

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Blocks":
        """The blocks that `to_bytes` wrote. Raises ValueError when the bytes are not such."""
        try:
            start = 4 + int.from_bytes(stored[:4], "little")
            header = json.loads(stored[4:start])
            planes = np.frombuffer(stored[start:], np.uint8).reshape(4, -1)
            values = np.ascontiguousarray(planes.T).view("<u4").ravel().astype(np.uint32)
            return cls._from_parts(header, values)
        except (KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"these are no timing blocks: {error!r}") from error

    @classmethod
    def _from_parts(cls, header: Mapping[str, Any], values: NDArray[np.uint32]) -> "Blocks":
        shapes: dict[str, list[int]] = header["shapes"]
        first = shapes[header["paired"][0]]
        ends = np.cumsum([math.prod(shape) for shape in [*shapes.values(), first[:1], first[:3]]])
        if ends[-1] != len(values):
            raise ValueError(f"these are no timing blocks: {len(values)} values where {ends[-1]} are due")
        *arms, floor_ns, orders = np.split(values, ends[:-1])
        samples_ns = {arm: part.reshape(shape) for (arm, shape), part in zip(shapes.items(), arms, strict=True)}
        blocks = cls(
            workloads=tuple(header["workloads"]),
            calls=tuple(header["calls"]),
            paired=tuple(header["paired"]),
            samples_ns=MappingProxyType(samples_ns),
            floor_ns=floor_ns,
            orders=orders.reshape(first[:3]),
            twins=int(header.get("twins", 1)),
            rule=int(header.get("rule", LOWER_HALVES)),
        )
        if problem := blocks._problem():
            raise ValueError(f"these are no timing blocks: {problem}")
        return blocks

    def _problem(self) -> str | None:
        """Why no figure can be worked out from these; None when all can."""
        named = all(isinstance(name, str) for name in self.workloads) and set(self.paired) <= set(self.arms)
        counted = all(type(count) is int and 0 < count <= LONGEST_NS for count in self.calls)
        if not (named and counted and len(self.calls) == len(self.workloads) and self.twins > 0):
            return f"{self.workloads} with {self.calls} calls, {self.twins} processes of each of {self.paired}"
        if self.rule not in (LOWER_HALVES, PAIRED):
            return f"a rule {self.rule} that is not known here"
        for arm, samples in self.samples_ns.items():
            if samples.size == 0 or samples.shape[2:-1] != (len(self.workloads),) or len(samples) > self.groups:
                return f"samples of {arm} in the shape {samples.shape}"
            if not self._sampled(samples, self.twins if arm in self.paired else 1):
                return f"a process of {arm} has no sample of a workload"
        return None

    @staticmethod
    def _sampled(samples: NDArray[np.uint32], twins: int) -> bool:
        """Whether every process has a sample of every workload in each of its blocks."""
        process = process_of(samples.shape[3], twins)
        return all((samples[..., process == number] > 0).any(axis=3).all() for number in range(twins))

    def __eq__(self, other: object) -> bool:
        """Whether every sample is the same."""
        return isinstance(other, Blocks) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        """Consistent with equality."""
        return hash(self.to_bytes())


def process_of(samples: int, processes: int) -> NDArray[np.int64]:
    """[samples]: the number of the process that takes each of a paired arm's samples in a block.

    Two of them take turns in palindromes (0 1 1 0 0 1 1 0), as arms do, so that no drift sets them apart.
    """
    return (np.arange(samples) + 1) // 2 % processes


def median_of_taken(values: NDArray[np.float64], axis: int | tuple[int, ...]) -> NDArray[np.float64]:
    """The median along the axes of all that is no NaN."""
    return np.asarray((np.nanmedian if np.isnan(values).any() else np.median)(values, axis=axis))


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """One audit: the verdict and all that led to it.

    `incumbent` names the implementation it was timed against. `latencies_s` holds the candidate's median by
    workload: every workload when verified, else nothing; from the confirmation where there is one.
    """

    verdict: Verdict
    evidence: str
    checks: tuple[CheckResult, ...] = ()
    screen: Blocks | None = None
    confirmation: Blocks | None = None
    incumbent: str | None = None
    latencies_s: Mapping[str, float] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    """Facts of the artifact: text_bytes, rodata_bytes, stack_bytes (largest frame), by what the toolchain tells."""
    artifact_digest: str | None = None
    log: bytes = b""
    """What compiler and candidate printed, at most LOG_LIMIT_BYTES."""
    build_s: float = 0.0
    check_s: float = 0.0
    """What the checks took beyond the timing that went on beside them, so that the three add up to the audit."""
    timing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimingOutcome:
    """A verified candidate timed again against a new incumbent; fields as in AuditOutcome."""

    verdict: Verdict
    evidence: str
    screen: Blocks | None = None
    confirmation: Blocks | None = None
    incumbent: str | None = None
    latencies_s: Mapping[str, float] = field(default_factory=dict)
    timing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Qualification:
    """The root's audit, and its baselines timed in the root's own session (`root.confirmation` has the blocks)."""

    root: AuditOutcome
    baselines: Mapping[str, Mapping[str, float]]
    """Baseline name to latency in seconds by workload."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Baseline name to the reason why it is not shown."""


def capped_log(*parts: bytes) -> bytes:
    """The parts joined, cut in the middle to LOG_LIMIT_BYTES."""
    log = b"\n".join(part.strip() for part in parts if part.strip())
    if len(log) <= LOG_LIMIT_BYTES:
        return log
    half = LOG_LIMIT_BYTES // 2 - 16
    return log[:half] + b"\n[... cut ...]\n" + log[-half:]
