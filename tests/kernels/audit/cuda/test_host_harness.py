"""The whole audit of Python candidates, on this machine's memory: every verdict that needs no GPU to come about.

A candidate here computes with numpy; a replay calls it again. What its source may say is not asked: these tests are
about what the process around it lets it do, and what the auditor sees of it.
"""

import fcntl
import os
import re
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelbraid.kernels.audit import checks
from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.cuda import clock, copies, harness
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.cuda.sanitizer import Sanitizer
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Correctness, Infrastructure

Audit = Callable[[str], AuditOutcome]
ENTRY = """
import ctypes, os, signal, socket, subprocess, sys, threading, time
import numpy as np

def scale(x, w, f, y):
    y[...] = (x * w) * f[:, None]

def pipe(descriptor):
    try:
        return os.write(descriptor, b"") == 0 and "pipe:" in os.readlink(f"/proc/self/fd/{{descriptor}}")
    except OSError:
        return False

def scale_full(x, w, f, y):
{body}

scale_decode = scale_full
"""
LATE = Correctness.LATE_WRITE
RIGHT = "y[...] = (x * w) * f[:, None]"


def entry(body: str, before: str = "") -> str:
    """A kernel.py whose entries do this."""
    return before + ENTRY.format(body=textwrap.indent(textwrap.dedent(body).strip(), "    "))


def test_right_candidate_is_verified(host_audit: Audit) -> None:
    outcome = host_audit(entry(f"for _ in range(20): {RIGHT}"))
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    assert {check.name for check in outcome.checks} >= {"identity", "guards", "agreement", "accuracy", "timed_outputs"}
    assert all(check.passed for check in outcome.checks)
    told = outcome.evidence.splitlines()[1]
    (sizes,) = [check for check in outcome.checks if check.name == "sizes"]
    assert (sizes.evidence, sizes.cases) == (told, len(re.findall(r"\d+x\d+", told)))


WRONG = {
    "too large": (f"{RIGHT}; y *= np.float32(1.01)", Correctness.INACCURATE),
    "other order in one row": ("y[...] = (x * w) * f[:, None] if len(x) > 1 else x * (w * f[0])", "disagreement"),
    "last column unwritten": (f"t = x * 0; {RIGHT.replace('y[', 't[')}; y[:, :-1] = t[:, :-1]", "output_not_written"),
    "nothing written": ("pass", Correctness.OUTPUT_NOT_WRITTEN),
    "input overwritten": (f"{RIGHT}; x[0, 0] += 1", Correctness.INPUT_WRITTEN),
    "written before its output": (
        f"{RIGHT}; ctypes.memset(y.ctypes.data - 4, 7, 4)",
        Correctness.GUARD_OVERWRITTEN,
    ),
    "written after its output": (
        f"{RIGHT}; ctypes.memset(y.ctypes.data + y.nbytes, 7, 1)",
        Correctness.GUARD_OVERWRITTEN,
    ),
    "another result in every process": (f"{RIGHT}; y *= np.float32(1 + 1e-7 * (os.getpid() % 2))", "nondeterministic"),
    "ends": (f"{RIGHT}; os._exit(0)", Correctness.EXITED_EARLY),
    "raises": ("raise ValueError('no')", Correctness.CRASHED),
    "asks to exit": ("sys.exit(0)", Correctness.CRASHED),
    "wild pointer": ("ctypes.memset(8, 0, 8)", Correctness.CRASHED),
    "endless": ("while True: pass", Correctness.HUNG),
    "floods": (f"{RIGHT}; sys.stdout.write('x' * (1 << 25)); sys.stdout.flush()", Correctness.OUTPUT_FLOOD),
    "hogs memory": (f"{RIGHT}; scale_full.kept = np.ones(3 << 30)", Correctness.OUT_OF_MEMORY),
    "closes the pipe": (f"{RIGHT}; [os.close(n) for n in range(3, 8)]; time.sleep(9)", Correctness.EXITED_EARLY),
    "answers before it has written": (
        "threading.Thread(target=lambda: (time.sleep(0.4), scale(x, w, f, y))).start()",
        Correctness.OUTPUT_NOT_WRITTEN,
    ),
    "goes on writing": (f"{RIGHT}; threading.Thread(target=lambda: [y.fill(n) for n in range(10**5)]).start()", LATE),
    "forges an answer": (
        f"{RIGHT}; [os.write(n, b'\\x11' + b'\\0' * 23) for n in range(3, 9) if pipe(n)]",
        Correctness.FORGED_REPLY,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_candidate_gets_its_verdict(host_audit: Audit, name: str) -> None:
    body, expected = WRONG[name]
    outcome = host_audit(entry(body))
    assert outcome.verdict == expected, (outcome.evidence, outcome.log)
    assert outcome.evidence


ONLY_TIMED = {
    "too large": ((256, 512), "y *= np.float32(1.01)", Correctness.INACCURATE, "full 256 x 512"),
    "other order": ((256, 512), "y[...] = x * (w * f[:, None])", Correctness.DISAGREEMENT, "full 256 x 512"),
    "too large a decode": ((64, 1024), "y *= np.float32(1.01)", Correctness.INACCURATE, "decode 64 x 1024"),
}


@pytest.mark.parametrize("name", ONLY_TIMED)
def test_timed_shape_too_large_for_the_checks_is_compared_in_parts(
    host_audit: Audit, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shape, wrong, verdict, workload = ONLY_TIMED[name]
    monkeypatch.setattr(checks, "TIMED_BYTES", 0)
    monkeypatch.setattr(copies, "MOST_REFERENCE_ELEMENTS", 0)
    outcome = host_audit(entry(f"{RIGHT}\nif x.shape == {shape}: {wrong}"))
    assert outcome.verdict is verdict, outcome.evidence
    assert f"workload {workload}: y of scale_decode(rows=" in outcome.evidence


def test_failed_import_is_named(host_audit: Audit) -> None:
    outcome = host_audit("import nothing_of_that_name")
    assert outcome.verdict is Correctness.LOAD_FAILED
    assert "nothing_of_that_name" in outcome.evidence


def test_missing_entry_is_named(host_audit: Audit) -> None:
    outcome = host_audit(ENTRY.format(body=f"    {RIGHT}").replace("scale_decode =", "another ="))
    assert outcome.verdict is Correctness.LOAD_FAILED
    assert "scale_decode" in outcome.evidence


DENIED = {
    "an internet socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a local socket": "socket.socket(socket.AF_UNIX)",
    "a session of its own": "os.setsid()",
    "a process group of its own": "os.setpgid(0, 0)",
    "a signal to its parent": "os.kill(os.getppid(), 0)",
    "a signal to the auditor": "os.kill({auditor}, 0)",
    "another's memory": "open('/proc/{auditor}/mem', 'rb')",
    "its parent's memory": "open(f'/proc/{{os.getppid()}}/mem', 'rb')",
    "another's environment": "open('/proc/{auditor}/environ', 'rb').read()",
    "a file of the user's": "open('{file}')",
    "a file elsewhere": "open('/tmp/kernelbraid-was-here', 'w')",
    "its own sources": "open(__file__, 'a')",
    "the scheduler": "os.sched_setaffinity(0, [0])",
    "a namespace": "os.unshare(os.CLONE_NEWUSER)",
    "another core for others": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
}


@pytest.mark.parametrize("name", DENIED)
def test_box_denies_what_a_kernel_has_no_use_for(
    host_audit: Audit, host_harness: DeviceHarness, name: str, tmp_path: Path
) -> None:
    if host_harness.environment().sandbox == "none":
        pytest.skip("Landlock does not work on this machine")
    secret = tmp_path / "secret"
    secret.write_text("expected results")
    attempt = DENIED[name].format(auditor=os.getpid(), file=secret)
    outcome = host_audit(entry(f"{attempt}; {RIGHT}"))
    assert outcome.verdict is Correctness.CRASHED, (outcome.verdict, outcome.evidence)
    assert any(error in outcome.evidence for error in ("PermissionError", "FileNotFoundError", "AttributeError"))


def test_nothing_that_a_candidate_started_outlives_it(host_audit: Audit) -> None:
    marker = f"survivor-{os.getpid()}-{time.monotonic_ns()}"
    keep_busy = f"[sys.executable, '-c', 'import time; time.sleep(60)', '{marker}']"
    once = f"hasattr(scale_full, 'kept') or setattr(scale_full, 'kept', subprocess.Popen({keep_busy}))"
    outcome = host_audit(entry(f"{once}; {RIGHT}; y += 1"))
    assert outcome.verdict is Correctness.INACCURATE, outcome.evidence
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(marker in line for line in command_lines()):
        time.sleep(0.01)
    assert not [line for line in command_lines() if marker in line]


def test_fork_bomb_ends_with_its_candidate(host_audit: Audit) -> None:
    outcome = host_audit(entry("for _ in range(40): os.fork() or time.sleep(20)\ntime.sleep(20)"))
    assert outcome.verdict is Correctness.HUNG, outcome.evidence
    assert len(command_lines()) < 2000


def command_lines() -> list[str]:
    """Of every process here."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return found


def test_faster_candidate_is_confirmed_beside_root_and_incumbent(
    host_harness: DeviceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "BESIDE_ROOT", replace(clock.BESIDE_ROOT, groups=2, most_groups=2))
    root, best, faster = (
        Candidate(f"i000{number}", {"kernel.py": entry(f"for _ in range({20 - 8 * number}): {RIGHT}")})
        for number in range(3)
    )
    outcome = host_harness.audit(faster, root, lambda: best)
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    assert outcome.confirmation is not None
    assert set(outcome.confirmation.paired) == {"root", "incumbent", "candidate"}
    assert outcome.confirmation.samples_ns["root"].shape == outcome.confirmation.samples_ns["candidate"].shape
    medians = {arm: sum(outcome.confirmation.medians_s(arm).values()) for arm in outcome.confirmation.arms}
    assert medians["candidate"] < medians["incumbent"] < medians["root"]
    assert {"all", "build", "checks", "screen", "confirmation"} <= set(host_harness.profile.summary())


def test_disturbed_clock_is_nobodys_fault(host_audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MOST_FLOOR_NS", 0)
    outcome = host_audit(entry(RIGHT))
    assert outcome.verdict is Infrastructure.DEVICE_FAULT
    assert "something else is using the device" in outcome.evidence


def test_root_qualifies_only_where_its_broken_twin_is_caught(host_harness: DeviceHarness) -> None:
    root = Candidate("i0000", {"kernel.py": entry(f"for _ in range(20): {RIGHT}")})
    found = host_harness.qualify(root, [])
    assert found.root.verdict is Correctness.VERIFIED, found.root.evidence
    assert {check.name: check.cases for check in found.root.checks}["broken_twin"] == 1


def test_checks_that_cannot_fail_qualify_no_root(host_harness: DeviceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Candidate("i0000", {"kernel.py": entry(RIGHT)})
    monkeypatch.setattr(host_harness, "_broken_twin", lambda root: root)
    found = host_harness.qualify(root, [])
    assert found.root.verdict is Correctness.WRONG_ARTIFACT


def test_health_is_proved_while_no_other_audit_is_on_the_device(
    host_audit: Audit, host_harness: DeviceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a look at the lock from outside, whenever an empty candidate runs
    seen: list[bool] = []
    check = DeviceHarness._prove_health

    def looked(*given: Any) -> None:
        with host_harness._timing_lock.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen.append(False)
            except BlockingIOError:
                seen.append(True)
        check(*given)

    monkeypatch.setattr(DeviceHarness, "_prove_health", looked)

    # when a candidate crashes
    outcome = host_audit(entry("os.kill(os.getpid(), 11)"))

    # then
    assert outcome.verdict is Correctness.CRASHED
    assert seen == [True]


@pytest.mark.parametrize("work", [12, 40], ids=["faster", "slower"])
def test_sanitizer_stands_before_a_promotion_alone(
    host_harness: DeviceHarness, monkeypatch: pytest.MonkeyPatch, work: int
) -> None:
    # given a sanitizer that finds something in whatever it is shown
    def finds(sanitizer: Sanitizer, artifact: Artifact) -> int:
        raise CandidateFailed(Correctness.GUARD_OVERWRITTEN, f"{sanitizer.program} found something")

    monkeypatch.setattr(Sanitizer, "check", finds)
    monkeypatch.setattr(host_harness, "_sanitizer", Path("a sanitizer"))
    root, candidate = (
        Candidate(name, {"kernel.py": entry(f"for _ in range({often}): {RIGHT}")})
        for name, often in (("i0000", 20), ("i0001", work))
    )

    # when
    outcome = host_harness.audit(candidate, root, lambda: root)

    # then only what might be promoted was shown to it
    expected = Correctness.GUARD_OVERWRITTEN if work == 12 else Correctness.VERIFIED
    assert outcome.verdict is expected, outcome.evidence
    assert outcome.confirmation is None
