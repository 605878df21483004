"""How a failure travels inside the audit: always with a verdict and its evidence.

AuditFailure
├── CandidateFailed        a Correctness verdict: the candidate's own doing
└── InfrastructureFailed   an Infrastructure verdict: says nothing of the candidate
"""

from kernelbraid.kernels.audit.outcome import Correctness, Infrastructure


def printable(text: str) -> str:
    """The text in one line without control characters: a candidate's words must not steer the reader's terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class AuditFailure(Exception):
    """The audit ended early. The harness turns it into an outcome; it never leaves the harness."""

    verdict: Correctness | Infrastructure

    def __init__(self, evidence: str, log: bytes = b"") -> None:
        super().__init__(evidence)
        self.evidence = printable(evidence)
        self.log = log


class CandidateFailed(AuditFailure):
    """The candidate failed with this verdict."""

    def __init__(self, verdict: Correctness, evidence: str, log: bytes = b"") -> None:
        super().__init__(evidence, log)
        self.verdict: Correctness = verdict


class InfrastructureFailed(AuditFailure):
    """The machine, not the candidate, failed."""

    def __init__(self, verdict: Infrastructure, evidence: str, log: bytes = b"") -> None:
        super().__init__(evidence, log)
        self.verdict: Infrastructure = verdict
