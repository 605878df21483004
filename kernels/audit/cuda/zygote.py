"""The process that all candidates' processes are forked from: boxed in, everything imported, no device touched.

An audit then pays a few milliseconds for a process, not the seconds of an import. One request a datagram, as JSON,
with file descriptors beside it; nothing of a candidate ever runs in here.

    {"fork": {...}} with command, reply, printed and the shared buffers' descriptors -> {"pid": N}
    {"reap": N}      kill the child's group and everything it left behind            -> {"status": N}
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelbraid.kernels.audit.cuda import child
from kernelbraid.kernels.audit.cuda.child import Backend

MOST_REQUEST_BYTES = 1 << 16
MOST_DESCRIPTORS = 8
END_S = 20.0
"""A process whose kernel never ends takes the driver seconds to tear down."""


@dataclass
class Zygote:
    """The request loop."""

    backend: Backend
    control: socket.socket
    children: set[int] = field(default_factory=set)

    def serve(self) -> None:
        """Until the auditor closes its end or dies."""
        self.backend.warm()
        self._tell({"versions": dict(self.backend.versions())})
        while True:
            request, descriptors, _, _ = socket.recv_fds(self.control, MOST_REQUEST_BYTES, MOST_DESCRIPTORS)
            if not request:
                break
            self._answer(json.loads(request), descriptors)
        for pid in list(self.children):
            self._reap(pid)

    def _answer(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        if "fork" in request:
            pid = self._fork(child.Config(**request["fork"]), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            self._tell({"pid": pid})
        else:
            self._tell({"status": self._reap(int(request["reap"]))})

    def _fork(self, config: child.Config, descriptors: Sequence[int]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become(config, descriptors)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self.children.add(pid)
        return pid

    def _become(self, config: child.Config, descriptors: Sequence[int]) -> None:
        """The child's whole life."""
        try:
            os.setpgid(0, 0)
            die_with_parent()
            self.control.close()
            command, reply, printed, *shared = descriptors
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            os.close(printed)
            child.main(self.backend, config, command, reply, shared)
        finally:
            os._exit(0)

    def _reap(self, pid: int) -> int | None:
        """Its wait status; None when it could not be ended in time."""
        _kill_group(pid)
        status = _waited(pid, END_S)
        self.children.discard(pid)
        for stray in self._strays():
            _kill_group(stray)
            _waited(stray, 1.0)
        return status

    def _strays(self) -> Iterator[int]:
        """What outlived its own parent and was handed to us."""
        for pid in _own_children():
            if pid not in self.children:
                yield pid

    def _tell(self, answer: Mapping[str, Any]) -> None:
        self.control.send(json.dumps(answer).encode())


def _own_children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _waited(pid: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return status
        time.sleep(0.0005)
    return None


def die_with_parent() -> None:
    """Die with the process that started us, even when it is killed."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """CONTROL BACKEND BOX READS WRITES; the last two are lists of paths as JSON."""
    control, backend_name, library, reads, writes = sys.argv[1:]
    if library:
        child.enter_box(library, "box_ancestor", json.loads(reads), json.loads(writes))
    with socket.socket(fileno=int(control)) as channel:
        Zygote(_backend(backend_name), channel).serve()


def _backend(name: str) -> Backend:
    if name == "host":
        from kernelbraid.kernels.audit.cuda.child_host import HostBackend

        return HostBackend()
    from kernelbraid.kernels.audit.cuda.child_cuda import CudaBackend

    return CudaBackend()
