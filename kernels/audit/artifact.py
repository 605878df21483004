"""Built candidates: the shared object's bytes and their digest, loaded only from a memory file that cannot change."""

import fcntl
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.outcome import Correctness

_ADD_SEALS = 1033
_SEAL_ALL = 0x1 | 0x2 | 0x4 | 0x8
"""seal, shrink, grow, write"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a build left."""

    image: bytes = field(repr=False)
    digest: str
    resources: Mapping[str, float]
    log: bytes
    build_s: float

    def open(self) -> int:
        """A sealed memory file with the image, which the caller closes.

        Raises CandidateFailed(wrong_artifact) unless the sealed bytes have the digest of what was built.
        """
        descriptor = _sealed_file(self.image)
        try:
            self._identify(os.pread(descriptor, len(self.image) + 1, 0))
        except CandidateFailed:
            os.close(descriptor)
            raise
        return descriptor

    def checked_image(self) -> bytes:
        """The image. Raises CandidateFailed(wrong_artifact) unless it has the digest of what was built."""
        self._identify(self.image)
        return self.image

    def _identify(self, image: bytes) -> None:
        found = hashlib.sha256(image).hexdigest()
        if found != self.digest:
            evidence = f"the artifact to load has SHA-256 {found}, the one built {self.digest}"
            raise CandidateFailed(Correctness.WRONG_ARTIFACT, evidence)


def _sealed_file(content: bytes) -> int:
    descriptor = os.memfd_create("artifact", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_ALL)
    return descriptor
