"""Which box this machine offers, and the command line that enters it.

bubblewrap gives new namespaces, no network and an almost empty file system; inside it, or alone where it does not
work, builder and runner box themselves in with Landlock, seccomp and resource limits (sandbox.h).
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
)


class SandboxKind(StrEnum):
    """What keeps a candidate in."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One kind of box. `kind` none sets resource limits only, and its callers decide whom to trust."""

    kind: SandboxKind

    @property
    def box(self) -> int:
        """The BOX argument of builder and runner."""
        return {SandboxKind.NONE: 0, SandboxKind.LANDLOCK: 1, SandboxKind.BUBBLEWRAP: 2}[self.kind]

    def prefix(self, reads: Iterable[Path], writes: Iterable[Path], report: int | None = None) -> tuple[str, ...]:
        """What stands before the command: nothing, or bubblewrap with these paths beside the system's.

        On `report`, a file descriptor, bubblewrap tells the command's process id as seen from here.
        """
        if self.kind is not SandboxKind.BUBBLEWRAP:
            return ()
        program = shutil.which("bwrap") or "bwrap"
        inner = (*_mounts(_SYSTEM), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
        own = [item for path in reads for item in ("--ro-bind-try", str(path), str(path))]
        own += [item for path in writes for item in ("--bind", str(path), str(path))]
        told = () if report is None else ("--as-pid-1", "--info-fd", str(report))
        namespaces = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
        return (program, *namespaces, *inner, *own, *told, "--")


def candidates() -> tuple[Sandbox, ...]:
    """The boxes worth trying here, the preferred one first; `none` is not among them."""
    found = [Sandbox(SandboxKind.BUBBLEWRAP)] if shutil.which("bwrap") else []
    return (*found, Sandbox(SandboxKind.LANDLOCK))


def _mounts(paths: Iterable[str]) -> list[str]:
    """Read-only binds, with merged folders (/lib -> usr/lib) as the links that they are."""
    arguments: list[str] = []
    for path in paths:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            arguments += ["--ro-bind", path, path]
    return arguments
