"""The vocabulary of the log: closed enums and the records that events are made of.

Latencies are in seconds, sizes in bytes; a `*_ratio` has no unit. Digests are SHA-256 in hex.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

import orjson
from pydantic import Field

from kernelbraid.events.event import Value

ROOT = "i0000"

Scope = Literal["full", "decode", "joint"]
EntryPath = Literal["full", "decode"]
Proposer = Literal["catalogue", "model", "outside"]


class Correctness(StrEnum):
    """The first result of an audit: verified, or the failure that bars an implementation from parenthood."""

    VERIFIED = "verified"
    BUILD_FAILED = "build_failed"
    BUILD_TIMEOUT = "build_timeout"
    LOAD_FAILED = "load_failed"
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "out_of_memory"
    FORBIDDEN_CALL = "forbidden_call"
    EXITED_EARLY = "exited_early"
    OUTPUT_FLOOD = "output_flood"
    OUTPUT_NOT_WRITTEN = "output_not_written"
    GUARD_OVERWRITTEN = "guard_overwritten"
    INPUT_WRITTEN = "input_written"
    DISAGREEMENT = "disagreement"
    INACCURATE = "inaccurate"
    NONDETERMINISTIC = "nondeterministic"
    WRONG_ARTIFACT = "wrong_artifact"
    FASTER_THAN_POSSIBLE = "faster_than_possible"
    LATE_WRITE = "late_write"
    CLOCK_DISPUTED = "clock_disputed"
    FORBIDDEN_LIBRARY = "forbidden_library"
    FORGED_REPLY = "forged_reply"


class Infrastructure(StrEnum):
    """An audit that says nothing about the implementation: it is tried once more, then the campaign pauses."""

    SANDBOX_REFUSED = "sandbox_refused"
    ENVIRONMENT_CHANGED = "environment_changed"
    DEVICE_FAULT = "device_fault"


class Performance(StrEnum):
    """The second result of an audit, given only to verified implementations."""

    PROMOTABLE = "promotable"
    NO_GAIN = "no_gain"
    UNDECIDED = "undecided"
    OVER_LIMIT = "over_limit"


class StopReason(StrEnum):
    """Why a campaign is over; each is final, a fork goes on."""

    KAPPA = "kappa"
    OPPORTUNITIES_EXHAUSTED = "opportunities_exhausted"
    BUDGET = "budget"
    EDITS_FAILING = "edits_failing"
    USER = "user"
    ROOT_UNQUALIFIED = "root_unqualified"


class DropReason(StrEnum):
    """Why an action ended without an audit."""

    FORKED = "forked"
    STOPPED = "stopped"


class SourceFile(Value):
    """One file of an implementation: its name and the digest of its text, which is a blob."""

    name: str
    digest: str


class Region(Value):
    """A named stretch of source, the paths whose bits or speed depend on it, and the digest of its text."""

    name: str
    paths: tuple[EntryPath, ...]
    digest: str


class Workload(Value):
    """A timed shape with its weight in the objective and its largest slowdown against the root."""

    name: str
    entry: str
    path: EntryPath
    dtype: str
    dims: dict[str, int]
    weight: float = Field(gt=0)
    limit_ratio: float = Field(ge=1)


class Contract(Value):
    """Contract keys: what a verdict means. Changing one makes every inherited verdict stale."""

    operator: str
    """A packaged operator's name, or a folder of the user's own."""
    target: str
    workloads: tuple[Workload, ...]
    numerical_contract: dict[str, str]
    declaration_digest: str
    """Digest of operator.toml: entries, checks, hidden shapes, tolerances."""
    harness_digest: str
    toolchain_digest: str


class Policy(Value):
    """Policy keys: how the search goes about it. A fork may change any of them."""

    seed: int = 0
    parallel: int = Field(default=1, ge=1, le=64)
    proposer: Proposer = "catalogue"
    planner: str = "catalogue"
    brancher: str = "catalogue"
    kappa: int = Field(default=30, ge=1)
    edits_failing: int = Field(default=10, ge=1)
    audits: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    cost_usd: float | None = Field(default=None, gt=0)
    wall_s: float | None = Field(default=None, gt=0)
    sandbox_required: bool = False


class Specification(Value):
    """The evaluation specification and the search policy, frozen when the campaign opens."""

    contract: Contract
    policy: Policy


class Environment(Value):
    """The machine a verdict holds for."""

    machine: str
    cpu_model: str
    simd_bits: int
    l1_bytes: int
    compiler: str
    compiler_version: str
    flags: tuple[str, ...]
    kernel_release: str
    sandbox: str
    harness_digest: str
    toolchain_digest: str
    device: str = ""
    """The accelerator's name and UUID; empty on the CPU."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Versions that a verdict depends on besides the compiler's, such as driver, torch and triton."""
    physics: dict[str, float] = Field(default_factory=dict)
    """The machine's measured ceilings: bandwidth_bytes_per_s, flop_per_s, call_floor_s, ..."""


class Digests(Value):
    """Digests of the code that decides: when one differs from today's, a replay says so first."""

    catalogue: str
    templates: str
    agents: str


Latencies = dict[str, Annotated[float, Field(gt=0)]]
"""Seconds a call by workload, an empty call's floor subtracted."""
Ratios = dict[str, Annotated[float, Field(gt=0)]]
"""By workload: one arm's latency over another's, timed side by side."""
Resources = dict[str, float]
"""Measured facts of an artifact by name, such as text_bytes or stack_bytes."""


class Baseline(Value):
    """A build timed beside the root and never a candidate."""

    name: str
    latencies_s: Latencies


class Check(NamedTuple):
    """One correctness check: how many cases it ran and, on failure, what a person needs to believe it."""

    name: str
    passed: bool
    cases: int
    evidence: str = ""


class Measurement(Value):
    """The summary of a timing decision; the blocks it was computed from are a blob.

    `ratio` is candidate over incumbent of the weighted objective, `upper_bound_ratio` its bound at
    `alpha`. `confirmation` is k, the ordinal of this confirmation in the campaign; None when the screen
    already ruled a gain out. `speedup_ratio` is root over candidate in the same blocks.
    """

    incumbent: str
    ratio: float = Field(gt=0)
    upper_bound_ratio: float = Field(gt=0)
    delta_ratio: float = Field(ge=0)
    standard_error_ratio: float = Field(ge=0)
    alpha: float | None = None
    confirmation: int | None = None
    speedup_ratio: float | None = None
    objective_s: float = Field(gt=0)
    incumbent_ratios: Ratios = Field(default_factory=dict)
    """Every workload's latency over the incumbent's."""
    root_ratios: Ratios = Field(default_factory=dict)
    """Every workload's latency over the root's, for which the contract sets limits; empty after a screen alone."""
    root_upper_bound_ratios: Ratios = Field(default_factory=dict)
    """The 97.5 % upper bounds of those."""
    blocks: tuple[str, ...] = ()
    """Digests of the blobs: the screen's blocks, then the confirmation's."""

    @property
    def has_error(self) -> bool:
        """Whether error and bound tell anything: a screen of one group has neither, and records 0 and its estimate."""
        return self.confirmation is not None or self.standard_error_ratio > 0


class Session(Value):
    """One timing session in figures, all of which its blocks give; none of its samples can be another with all of them
    the same.

    `ratio` is the estimate of candidate over incumbent, with its standard error; None where no candidate was timed.
    """

    ratio: float | None = None
    standard_error_ratio: float | None = None
    floors_ns: int
    """The empty message's median of every group, added up."""
    totals_ns: dict[str, int]
    """By arm: all of its samples, added up."""


class Change(Value):
    """A key of the specification that a fork set to another value (both as JSON)."""

    key: str
    before: str
    after: str


_YOUNGER_FIELDS = ("device", "packages")
"""Environments recorded before these fields existed keep their digests: an empty one is left out."""


def environment_digest(environment: Environment) -> str:
    """SHA-256 of the canonical JSON of what identifies a machine: environments with one digest are the same one.

    The measured ceilings are no part of it: they differ from one measurement to the next.
    """
    unnamed = {name for name in _YOUNGER_FIELDS if not getattr(environment, name)}
    identity = environment.model_dump(mode="json", exclude={"physics", *unnamed})
    return hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()
