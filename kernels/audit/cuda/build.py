"""Build a Python candidate: its source is read before anything runs, then compiled in a box without data."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.build import MOST_SOURCE_BYTES, PLAIN_NAME
from kernelbraid.kernels.audit.checks import Case
from kernelbraid.kernels.audit.cuda.sources import packed
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.native import Native
from kernelbraid.kernels.audit.outcome import Candidate, Correctness
from kernelbraid.kernels.audit.sandbox import Sandbox

Compile = Callable[[Candidate, Sequence[Case]], Artifact]
"""Beside what every audit calls, these cases are about to be."""
Refuse = Callable[[Mapping[str, str]], None]
"""Raises CandidateFailed when sources may not run."""


@dataclass(frozen=True, slots=True)
class CompilerFacts:
    """What names a compiler in an environment; `flags` are environment variables, NAME=VALUE."""

    name: str
    version: str
    flags: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class DeviceBuilder:
    """`refuse` reads sources, `compile` compiles ahead; without the latter a kernel is compiled when it first runs."""

    refuse: Refuse
    compile: Compile | None = None

    def build(self, candidate: Candidate, due: Sequence[Case] = ()) -> Artifact:
        """The sealed artifact. Raises CandidateFailed or InfrastructureFailed."""
        _refuse_files(candidate)
        self.refuse(candidate.sources)
        if self.compile is None:
            return bare(candidate.sources)
        compiled = self.compile(candidate, due)
        image = packed(candidate.sources, compiled.image)
        return replace(compiled, image=image, digest=hashlib.sha256(image).hexdigest())


MakeBuilder = Callable[[Native, Sandbox, Limits, Path], DeviceBuilder]
"""A harness settles on these: the native programs, the box, the limits, and a folder for temporary files."""


def bare(sources: Mapping[str, str]) -> Artifact:
    """Sources alone."""
    image = packed(sources)
    return Artifact(image, hashlib.sha256(image).hexdigest(), {}, b"", 0.0)


def _refuse_files(candidate: Candidate) -> None:
    for name in candidate.sources:
        if not PLAIN_NAME.fullmatch(name):
            raise CandidateFailed(Correctness.BUILD_FAILED, f"{name!r} is no plain file name")
    if sum(len(text) for text in candidate.sources.values()) > MOST_SOURCE_BYTES:
        raise CandidateFailed(Correctness.BUILD_FAILED, f"the sources exceed {MOST_SOURCE_BYTES} bytes")
    if "kernel.py" not in candidate.sources:
        raise CandidateFailed(Correctness.BUILD_FAILED, "there is no kernel.py among the sources")
    if candidate.flags:
        raise CandidateFailed(Correctness.BUILD_FAILED, "an implementation in Python takes no flags")
