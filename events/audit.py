"""Events of measurement: audits, timings, promotions."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from kernelbraid.events.event import Event
from kernelbraid.events.values import (
    Check,
    Correctness,
    Infrastructure,
    Latencies,
    Measurement,
    Performance,
    Resources,
    Session,
)


class AuditCompleted(Event):
    """The harness judged an implementation.

    `action` is None for the root and for audits repeated after a fork. `performance`, `latencies_s` and (but for the
    root) `measurement` are present if and only if it was verified. `log` is the digest of the builder's and runner's
    output.
    """

    version: ClassVar[int] = 5
    action: str | None
    implementation: str
    verdict: Annotated[Correctness | Infrastructure, Field(union_mode="left_to_right")]
    evidence: str
    cases: dict[str, int]
    """How many cases each check ran, by its name."""
    failures: dict[str, str] = Field(default_factory=dict)
    """The checks that failed, each with what a person needs to believe it."""
    latencies_s: Latencies = Field(default_factory=dict)
    performance: Performance | None = None
    measurement: Measurement | None = None
    sessions: tuple[Session, ...] | None = ()
    """One for each of the measurement's blocks; None in logs of before they were recorded."""
    resources: Resources = Field(default_factory=dict)
    artifact: str | None = None
    log: str | None = None
    environment: str
    """Digest of the environment it was measured in."""
    build_s: float
    check_s: float
    timing_s: float

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every check that ran, in order."""
        return tuple(
            Check(name, name not in self.failures, count, self.failures.get(name, ""))
            for name, count in self.cases.items()
        )

    @property
    def elapsed_s(self) -> float:
        """What the whole audit took."""
        return self.build_s + self.check_s + self.timing_s

    @model_validator(mode="after")
    def _measured_if_verified(self) -> "AuditCompleted":
        verified = self.verdict is Correctness.VERIFIED
        if verified != bool(self.latencies_s):
            raise ValueError("latencies stand if and only if the implementation was verified")
        if self.failures and not self.failures.keys() <= self.cases.keys():
            raise ValueError("a check that failed ran some cases")
        if self.performance is not None and not (verified and self.measurement is not None):
            raise ValueError("a performance result needs a verified implementation and its measurement")
        return self


class TimingCompleted(Event):
    """A verified implementation was timed again, because the best changed while it was measured.

    `measurement` is absent when the timing itself broke off; the result is then undecided, and `evidence` says why.
    """

    version: ClassVar[int] = 3
    implementation: str
    latencies_s: Latencies
    performance: Performance
    measurement: Measurement | None
    sessions: tuple[Session, ...] | None = ()
    """As an audit's."""
    evidence: str = ""
    environment: str
    elapsed_s: float

    @model_validator(mode="after")
    def _decided_if_measured(self) -> "TimingCompleted":
        if (self.measurement is None or not self.latencies_s) and self.performance is not Performance.UNDECIDED:
            raise ValueError("a result other than undecided needs its measurement and latencies")
        return self


class ImplementationPromoted(Event):
    """The implementation is the best now. The ratios are its last confirmation's own."""

    implementation: str
    replaces: str
    objective_s: float
    gain_ratio: float
    speedup_ratio: float
