"""Build a candidate in a box of its own: private folder, no data, no network, limits of time and memory."""

import hashlib
import os
import re
import select
import shutil
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.failure import CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.native import Native
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Infrastructure, capped_log
from kernelbraid.kernels.audit.sandbox import Sandbox
from kernelbraid.kernels.toolchains.toolchain import Command, Toolchain

REFUSED = 125
MOST_SOURCE_BYTES = 4 << 20
LARGE_SOURCE_BYTES = 11 << 10
"""From here on several processes compile faster than one, though each of them has to be started."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")


@dataclass(frozen=True, slots=True)
class Builder:
    """Compiles candidates; safe to use from several threads at once."""

    toolchain: Toolchain
    native: Native
    sandbox: Sandbox
    limits: Limits
    scratch: Path
    """Private folder under which each build gets one of its own."""
    large_flags: tuple[str, ...] = ()
    """Flags for large sources that change how long a build takes and nothing of what comes out."""

    def build(self, candidate: Candidate) -> Artifact:
        """The sealed artifact.

        Raises CandidateFailed (build_failed, build_timeout) or InfrastructureFailed (sandbox_refused).
        """
        self._refuse_names(candidate)
        folder = Path(tempfile.mkdtemp(prefix="build-", dir=self.scratch))
        try:
            return self._build_in(folder, candidate)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _refuse_names(self, candidate: Candidate) -> None:
        """A file name could otherwise be a path or a compiler flag."""
        for name in candidate.sources:
            if not PLAIN_NAME.fullmatch(name):
                raise CandidateFailed(Correctness.BUILD_FAILED, f"{name!r} is no plain file name")
        if sum(len(text) for text in candidate.sources.values()) > MOST_SOURCE_BYTES:
            raise CandidateFailed(Correctness.BUILD_FAILED, f"the sources exceed {MOST_SOURCE_BYTES} bytes")
        if not any(name.endswith(".c") for name in candidate.sources):
            raise CandidateFailed(Correctness.BUILD_FAILED, "there is no .c file among the sources")

    def _build_in(self, folder: Path, candidate: Candidate) -> Artifact:
        for name, text in candidate.sources.items():
            (folder / name).write_bytes(text.encode("utf-8", errors="surrogatepass"))
        started = time.perf_counter()
        status, log, command = self._compiled(folder, candidate)
        log = log.replace(f"{folder}/".encode(), b"")
        build_s = time.perf_counter() - started
        if status != 0:
            raise CandidateFailed(Correctness.BUILD_FAILED, _first_error(status, log), log)
        image = _read_artifact(folder / command.artifact, self.limits.build_file_bytes)
        resources = self.toolchain.resources(folder)
        return Artifact(image, hashlib.sha256(image).hexdigest(), resources, log, build_s)

    def _compiled(self, folder: Path, candidate: Candidate) -> tuple[int, bytes, Command]:
        """Exit status, log and command: with the flags for large sources where these are, else or if that fails
        without them."""
        sources = tuple(candidate.sources)
        if self.large_flags and sum(map(len, candidate.sources.values())) >= LARGE_SOURCE_BYTES:
            command = self.toolchain.command(sources, (*self.large_flags, *candidate.flags))
            status, log = self._compile(folder, command)
            if status == 0:
                return status, log, command
        command = self.toolchain.command(sources, candidate.flags)
        return *self._compile(folder, command), command

    def _compile(self, folder: Path, command: Command) -> tuple[int, bytes]:
        lifeline, held = os.pipe()
        with tempfile.TemporaryFile(dir=self.scratch) as printed:
            try:
                process = subprocess.Popen(
                    self._command_line(folder, command, lifeline),
                    pass_fds=(lifeline,),
                    cwd=folder,
                    env=self.toolchain.environment(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    # Out of the terminal's group: Ctrl-C is a request to the driver, not a verdict on a candidate.
                    start_new_session=True,
                )
                status = self._wait(process)
            except OSError as error:
                raise InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, f"no builder starts: {error}") from error
            finally:
                for descriptor in (lifeline, held):
                    os.close(descriptor)
            printed.seek(0)
            log = capped_log(printed.read(1 << 20))
        if status == REFUSED:
            raise InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, f"the builder's box: {_text(log)[-300:]}")
        return status, log

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        try:
            # A wait with a timeout would sleep for a twentieth of a second at a time.
            ended = os.pidfd_open(process.pid)
            try:
                if not select.select([ended], [], [], self.limits.build_s)[0]:
                    evidence = f"the compiler was stopped after {self.limits.build_s:g} s"
                    raise CandidateFailed(Correctness.BUILD_TIMEOUT, evidence)
            finally:
                os.close(ended)
            return process.wait()
        finally:
            process.kill()
            process.wait()

    def _command_line(self, folder: Path, command: Command, lifeline: int) -> list[str]:
        reads, writes = self.toolchain.reads(), (folder, *self.toolchain.writes())
        bounds = (self.limits.build_address_bytes, int(self.limits.build_s) + 1, self.limits.build_file_bytes)
        allowed = [item for path in reads for item in ("-r", str(path))]
        allowed += [item for path in (*writes, Path("/dev/null")) for item in ("-w", str(path))]
        box = min(self.sandbox.box, 1)
        return [
            *self.sandbox.prefix((self.native.builder, *_outside_system(reads)), writes),
            *(str(self.native.builder), str(lifeline), str(box), *map(str, bounds)),
            *allowed,
            "--",
            *command.arguments,
        ]


def _outside_system(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Paths that an empty file system with the system's folders would lack."""
    system = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/dev", "/proc", "/sys")
    return tuple(path for path in paths if not str(path).startswith(system))


def _read_artifact(path: Path, most_bytes: int) -> bytes:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise CandidateFailed(Correctness.BUILD_FAILED, "the compiler left no plain file of a sensible size")
        return path.read_bytes()
    except OSError as error:
        raise CandidateFailed(Correctness.BUILD_FAILED, f"the compiler left no artifact: {error.strerror}") from error


def _first_error(status: int, log: bytes) -> str:
    lines = _text(log).splitlines()
    errors = [line for line in lines if "error" in line.lower() or "undefined reference" in line]
    return (errors or lines or [f"the compiler ended with status {status}"])[0][:400]


def _text(log: bytes) -> str:
    return log.decode("utf-8", errors="replace")
