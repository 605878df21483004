"""Starts the zygote and has it fork candidates' processes.

The zygote is trusted and boxed in: bubblewrap's new namespaces would cut the driver's own socket, through which
device memory is shared between processes, so here the box is Landlock, seccomp and resource limits alone.
"""

import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelbraid.kernels.audit.failure import InfrastructureFailed
from kernelbraid.kernels.audit.outcome import Infrastructure

START_S = 120.0
"""A first import of torch reads gigabytes from a cold disk."""
ANSWER_S = 30.0
_PACKAGES = {"host": ("numpy",), "cuda": ("numpy", "torch", "triton")}
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/etc/ld.so.cache", "/etc/ld.so.conf")
_MORE_SYSTEM = ("/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/proc", "/sys", "/dev/urandom")
_DEVICES = ("/dev/null", "/dev/zero")
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "CC", "CUDA_HOME")
# The package's door imports the whole system; a candidate's process has no use for it, and should not have it.
_BOOT = """
import sys, types
package = types.ModuleType("kernelbraid")
package.__path__ = [sys.argv.pop(1)]
sys.modules["kernelbraid"] = package
from kernelbraid.kernels.audit.cuda.{module} import main
main()
"""


def program(module: str) -> tuple[str, ...]:
    """The command line that runs a module of the child side; its arguments follow."""
    return (sys.executable, "-P", "-c", _BOOT.format(module=module), str(Path(__file__).parents[3]))


@dataclass(frozen=True, slots=True)
class Settings:
    """How the zygote is started. `library` is the native box's path, None for no box."""

    backend: str
    library: Path | None
    scratch: Path
    flags: tuple[str, ...] = ()
    """Environment variables, NAME=VALUE, that decide what a compiler makes."""
    visible: str = ""
    devices: tuple[str, ...] = ()

    @property
    def reads(self) -> list[str]:
        """Paths that a candidate's process may read."""
        return sorted({*_SYSTEM, *_MORE_SYSTEM, *_interpreter(), *_packages(self.backend)})

    @property
    def writes(self) -> list[str]:
        """Device files; folders are added for each process."""
        return [*_DEVICES, *self.devices]


class Zygote:
    """The process; safe to use from several threads. Raises InfrastructureFailed(sandbox_refused)."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._asking = threading.Lock()
        self._abandoned: list[int] = []
        self._printed = os.memfd_create("printed", os.MFD_CLOEXEC)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = self._spawn(theirs)
        try:
            self.versions: Mapping[str, str] = self._answer(START_S)["versions"]
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def fork(self, config: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The new process's id; it stays valid until `reap`, however the process ends."""
        return int(self._ask({"fork": config}, descriptors)["pid"])

    def reap(self, pid: int) -> int | None:
        """Kill what is left of the process and all that it started; its wait status, None when it would not end."""
        status = self._ask({"reap": pid}, ())["status"]
        return None if status is None else int(status)

    def abandon(self, pid: int) -> None:
        """Kill the process's group now and leave the waiting to `reap_abandoned`: a device takes long to let go."""
        kill_group(pid, signal.SIGKILL)
        self._abandoned.append(pid)

    def reap_abandoned(self) -> None:
        """Wait until nothing is left of the processes that were abandoned."""
        while self._abandoned:
            self.reap(self._abandoned.pop())

    def printed(self) -> bytes:
        """What the zygote itself said: imports that fail, refusals."""
        return os.pread(self._printed, 1 << 16, 0)

    def close(self) -> None:
        """End it, and with it every child."""
        self._control.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._printed)

    def _spawn(self, control: socket.socket) -> "subprocess.Popen[bytes]":
        settings = self.settings
        reads = [*settings.reads, str(Path(__file__).resolve().parent)]
        box = [str(settings.library or ""), json.dumps(reads), json.dumps(self._writes())]
        number = str(control.fileno())
        return subprocess.Popen(
            [*program("zygote"), number, settings.backend, *box],
            pass_fds=(control.fileno(),),
            env=environment(settings),
            cwd=settings.scratch,
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=self._printed,
            start_new_session=True,
        )

    def _writes(self) -> list[str]:
        """The driver names its threads through /proc when a device is opened; a candidate's own box is closed later."""
        return [*self.settings.writes, "/proc", str(self.settings.scratch)]

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> Mapping[str, Any]:
        with self._asking:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            except OSError as error:
                raise self._gone(f"it no longer listens: {error}") from error
            return self._answer(ANSWER_S)

    def _answer(self, timeout_s: float) -> Mapping[str, Any]:
        ready, _, _ = select.select([self._control], [], [], timeout_s)
        answer = self._control.recv(1 << 16) if ready else b""
        if not answer:
            raise self._gone("it ended" if ready else f"no answer within {timeout_s:g} s")
        found: Mapping[str, Any] = json.loads(answer)
        return found

    def _gone(self, what: str) -> InfrastructureFailed:
        said = self.printed()
        last = said.decode("utf-8", errors="replace").strip().splitlines()[-1:]
        evidence = f"the process that candidates are forked from: {what}; it last said {last}"
        return InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, evidence, said)


def environment(settings: Settings) -> dict[str, str]:
    """Of a process for candidates: nothing of ours but where programs and libraries lie."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    flags = dict(flag.split("=", 1) for flag in settings.flags)
    own = {
        "PYTHONPATH": os.pathsep.join(sorted(_packages(settings.backend))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(settings.scratch),
        "TMPDIR": str(settings.scratch),
        "CUDA_VISIBLE_DEVICES": settings.visible,
        "CUDA_CACHE_DISABLE": "1",
        # One thread each: a fork must find no thread pool that only its parent still has.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }
    return kept | flags | own


def kill_group(pid: int, signal_number: int) -> None:
    """Signal a child's whole group; nothing where it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal_number)


def _interpreter() -> Iterable[str]:
    return {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parent.parent)}


def _packages(backend: str) -> set[str]:
    """Where the backend's packages lie, without importing them."""
    found = (importlib.util.find_spec(name) for name in _PACKAGES[backend])
    return {str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin}
