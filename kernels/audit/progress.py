"""What one audit has found so far, and the outcomes that it can come to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.beside import Beside
from kernelbraid.kernels.audit.checks import Case, Tally
from kernelbraid.kernels.audit.failure import AuditFailure
from kernelbraid.kernels.audit.outcome import CANDIDATE, AuditOutcome, Blocks, Correctness, TimingOutcome, capped_log


@dataclass
class Progress:
    """What one audit has found so far."""

    tally: Tally = field(default_factory=Tally)
    artifact: Artifact | None = None
    due: tuple[Case, ...] = ()
    """The cases that the next run of the checks makes, on a device."""
    checks: Beside | None = None
    """What is checked while it is timed."""
    screen: Blocks | None = None
    confirmation: Blocks | None = None
    incumbent: str | None = None
    printed: bytes = b""
    check_s: float = 0.0
    timing_s: float = 0.0

    def built(self, artifact: Artifact) -> None:
        """The build is done."""
        self.artifact = artifact

    def forget_times(self) -> None:
        """What was timed while a check failed says nothing."""
        self.screen = self.confirmation = self.incumbent = None

    def failed(self, failure: AuditFailure) -> AuditOutcome:
        """The outcome of an audit that ended early."""
        log = capped_log(self.artifact.log if self.artifact else b"", failure.log or self.printed)
        return AuditOutcome(
            verdict=failure.verdict,
            evidence=failure.evidence,
            checks=self.tally.results(failure),
            screen=self.screen,
            confirmation=self.confirmation,
            incumbent=self.incumbent,
            resources=self.artifact.resources if self.artifact else MappingProxyType({}),
            artifact_digest=self.artifact.digest if self.artifact else None,
            log=log,
            build_s=self.artifact.build_s if self.artifact else 0.0,
            check_s=self.check_s,
            timing_s=self.timing_s,
        )

    def verified(self, arm: str) -> AuditOutcome:
        """The outcome of an audit in which every check passed and every workload was timed as `arm`."""
        assert self.artifact is not None, "nothing is verified that was not built"
        return AuditOutcome(
            verdict=Correctness.VERIFIED,
            evidence="\n".join([self._summary(), *self.tally.notes.values()]),
            checks=self.tally.results(),
            screen=self.screen,
            confirmation=self.confirmation,
            incumbent=self.incumbent,
            latencies_s=self._latencies_s(arm),
            resources=self.artifact.resources,
            artifact_digest=self.artifact.digest,
            log=capped_log(self.artifact.log, self.printed),
            build_s=self.artifact.build_s,
            check_s=self.check_s,
            timing_s=self.timing_s,
        )

    def timing(self, failure: AuditFailure | None) -> TimingOutcome:
        """The outcome of a timing."""
        verdict = Correctness.VERIFIED if failure is None else failure.verdict
        evidence = self._summary() if failure is None else failure.evidence
        latencies_s = self._latencies_s(CANDIDATE) if failure is None else MappingProxyType({})
        parts = (self.screen, self.confirmation, self.incumbent, latencies_s, self.timing_s)
        return TimingOutcome(verdict, evidence, *parts)

    def _summary(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.tally.passed.items())

    def _latencies_s(self, arm: str) -> Mapping[str, float]:
        blocks = self.confirmation or self.screen
        assert blocks is not None, "a verified candidate was timed"
        return blocks.medians_s(arm)
