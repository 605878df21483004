"""What an auditor needs of a harness: the real one and the simulated one both offer exactly this."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Qualification, TimingOutcome


class Auditing(Protocol):
    """A harness, used as a context manager so that nothing outlives it."""

    def environment(self) -> Environment:
        """Where its figures are taken."""

    def qualify(self, root: Candidate, baselines: Sequence[Candidate]) -> Qualification:
        """Audit the root and time it together with its baselines."""

    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """Build, check and time; `incumbent` is asked only once the machine's timing lock is held."""

    def time(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> TimingOutcome:
        """Time a verified candidate again."""

    def close(self) -> None:
        """End every process and remove every temporary file."""

    def __enter__(self) -> Self:
        """The harness itself."""

    def __exit__(self, *exception: object) -> None:
        """Close it."""
