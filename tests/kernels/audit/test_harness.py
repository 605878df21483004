"""The harness as its callers see it: sound candidates, limits, refusals, and nothing left behind."""

import operator
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.kernels.audit import clock, lock, sandbox
from kernelbraid.kernels.audit import harness as harness_module
from kernelbraid.kernels.audit.build import LARGE_SOURCE_BYTES
from kernelbraid.kernels.audit.clock import MANY_MESSAGES, SHORT_COPIES, SUSPICIOUS_RATIO, Session
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.native import Elapsed
from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    LONGEST_NS,
    AuditOutcome,
    Candidate,
    Correctness,
    Infrastructure,
)
from kernelbraid.kernels.audit.plan import Plan
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind
from kernelbraid.kernels.audit.sizes import Sizes
from kernelbraid.kernels.operators.operator import Operator

LIMITS = Limits(load_s=5, call_s=5)
ROW = "y[i] = (x[i] * w[i]) * f;"


def edited(root: Candidate, old: str, new: str, name: str = "i0001") -> Candidate:
    """The root with one stretch of source replaced, which must be there once."""
    ((file, text),) = root.sources.items()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return Candidate(name, {file: text.replace(old, new)})


def test_the_evidence_names_the_shapes_at_the_sizes_of_the_source(
    scale: Operator, root: Candidate, audited: Callable[[Candidate], AuditOutcome]
) -> None:
    # given: a source that says 123, which is no declared size
    candidate = edited(root, ROW, f"{{ {ROW} if (width == 123 && f == 5e9f) y[i] = 0; }}")
    outcome = audited(candidate)
    # then: whoever has the source and the seed draws the same shapes
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    told = outcome.evidence.splitlines()[1]
    again = Sizes(scale).drawn(candidate.sources, seed_of(told))
    assert told == str(again)
    assert any(123 in shape.dims.values() for shape in again.shapes)
    (check,) = [check for check in outcome.checks if check.name == "sizes"]
    assert (check.passed, check.cases, check.evidence) == (True, len(again.shapes), told)


def seed_of(told: str) -> int:
    return int(told.removeprefix("sizes of seed ").partition(";")[0])


def test_what_is_wrong_at_one_size_that_the_source_names_is_found(
    root: Candidate, audited: Callable[[Candidate], AuditOutcome]
) -> None:
    outcome = audited(edited(root, ROW, f"{{ {ROW} if (width == 123) y[i] *= 2; }}"))
    assert outcome.verdict is Correctness.INACCURATE, outcome.evidence
    assert "width=123)" in outcome.evidence


def test_a_verified_candidate_has_every_latency_and_its_evidence(
    scale: Operator, root: Candidate, audited: Callable[[Candidate], AuditOutcome]
) -> None:
    outcome = audited(root)
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    assert set(outcome.latencies_s) == {workload.name for workload in scale.workloads}
    assert all(1e-7 < latency_s < 1e-2 for latency_s in outcome.latencies_s.values())
    assert {check.name for check in outcome.checks} >= {"agreement", "accuracy", "determinism", "guards", "identity"}
    assert all(check.passed and check.cases for check in outcome.checks)
    assert outcome.screen is not None
    assert outcome.screen.arms == ("incumbent", "candidate")
    assert outcome.resources["text_bytes"] > 100
    assert outcome.incumbent == "i0000"


def test_a_slower_candidate_is_verified_and_not_confirmed(
    root: Candidate, audited: Callable[[Candidate], AuditOutcome]
) -> None:
    slow = edited(
        root,
        "    scale_full(x, w, f, y, dims);",
        "    for (int i = 0; i < 4; i++)\n        scale_full(x, w, f, y, dims);",
    )
    outcome = audited(slow)
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    assert outcome.confirmation is None


def test_the_incumbent_is_asked_for_under_the_lock(harness: Harness, root: Candidate, lock_path: Path) -> None:
    """Given another holder of the lock, when an audit reaches its timing, then it asks only after the release."""
    asked = threading.Event()

    def incumbent() -> Candidate:
        asked.set()
        return root

    audit = threading.Thread(target=lambda: harness.audit(root, root, incumbent))
    with lock.held(lock_path):
        audit.start()
        assert not asked.wait(1.0)
    assert asked.wait(10.0)
    audit.join()


def test_of_a_failing_candidate_no_time_is_told(harness: Harness, root: Candidate) -> None:
    broken = edited(root, "* f;", "* f + 1;")
    outcome = harness.audit(broken, root, lambda: root)
    assert outcome.verdict is Correctness.INACCURATE
    assert (outcome.screen, outcome.confirmation, outcome.incumbent, outcome.latencies_s) == (None, None, None, {})


def test_where_there_is_one_core_nothing_is_checked_while_it_is_timed(
    harness: Harness, root: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a machine whose only core times, and a candidate that no check passes
    monkeypatch.setattr(harness, "_other_cpus", frozenset([harness._timing_cpu]))
    broken = edited(root, "* f;", "* f + 2;")
    # when, then: it is never timed
    assert harness.audit(broken, root, lambda: pytest.fail("it was timed")).verdict is Correctness.INACCURATE
    assert harness.audit(root, root, lambda: root).verdict is Correctness.VERIFIED


def test_the_root_is_timed_beside_its_baselines(harness: Harness, scale: Operator, root: Candidate) -> None:
    fast = Candidate("-ffast-math", root.sources, ("-ffast-math",))
    broken = Candidate("broken", {"scale.c": "nonsense"})
    qualification = harness.qualify(root, [fast, broken])
    assert qualification.root.verdict is Correctness.VERIFIED, qualification.root.evidence
    assert set(qualification.baselines) == {"-ffast-math"}
    assert set(qualification.baselines["-ffast-math"]) == {workload.name for workload in scale.workloads}
    assert qualification.left_out["broken"].startswith("build_failed")
    assert qualification.root.confirmation is not None
    assert qualification.root.confirmation.arms == ("root", "-ffast-math")


def test_an_unsound_root_does_not_qualify(harness: Harness, root: Candidate) -> None:
    qualification = harness.qualify(edited(root, "* f;", "* f + 1;"), [])
    assert qualification.root.verdict is Correctness.INACCURATE


def test_a_candidate_is_timed_again_without_checks(harness: Harness, scale: Operator, root: Candidate) -> None:
    timing = harness.time(root, root, lambda: root)
    assert timing.verdict is Correctness.VERIFIED, timing.evidence
    assert set(timing.latencies_s) == {workload.name for workload in scale.workloads}


def test_a_message_of_seven_seconds_is_a_long_one_and_no_error(
    harness: Harness, root: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a candidate whose every message takes longer than a sample can say
    sample = Session._sample

    def slow(session: Session, arm: str, index: int, messages: Sequence[Elapsed]) -> int:
        taken = [Elapsed(7_000_000_000, 7_000_000_000) for _ in messages] if arm == CANDIDATE else messages
        return sample(session, arm, index, taken)

    monkeypatch.setattr(Session, "_sample", slow)
    # when
    timing = harness.time(root, root, lambda: root)
    # then
    assert timing.verdict is Correctness.VERIFIED, timing.evidence
    assert timing.confirmation is None
    assert timing.screen is not None
    assert timing.screen.samples_ns[CANDIDATE].max() == LONGEST_NS


def test_a_message_that_is_suspiciously_short_is_copied(harness: Harness, root: Candidate) -> None:
    # given a session whose candidate's messages are short beside what was seen of it
    arms = {INCUMBENT: harness._artifact(root), CANDIDATE: harness._artifact(root)}
    plan = Plan(groups=1, blocks=1, palindromes=1, copies=1)
    with harness._session(arms) as session:
        session.run(plan)
        session.copies.clear()
        for seen in session._seen.values():
            seen[:] = [1_000_000_000] * 8
        # when
        session.run(plan)
        # then: all of them are copied, with all of their calls, and nothing of the incumbent's
        calls = sum(2 * session._pace.visit(index) * count for index, count in enumerate(session._pace.calls))
        assert len(session.copies) == calls
        assert session.verify_copies(0) == calls
        assert not session.copies


def test_messages_short_beside_the_middle_one_are_copied_first_and_now_and_then(
    harness: Harness, root: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a session most of whose messages were long, while every sample was as short as they are now
    arms = {INCUMBENT: harness._artifact(root), CANDIDATE: harness._artifact(root)}
    plan = Plan(groups=1, blocks=1, palindromes=4, copies=0)
    with harness._session(arms) as session:
        session.run(plan)
        for later in (0.0, 1.0):
            monkeypatch.setattr(clock, "SHORT_RATIO", later)
            session.copies.clear()
            for seen in session._seen.values():
                seen[:] = [1] * 1000
            for messages in session._messages.values():
                messages[:] = [1_000_000_000] * 1000
            # when
            session.run(plan)
            # then
            every = [2 * plan.palindromes * session._pace.visit(index) for index in range(len(session._pace.calls))]
            due = [most if later else SHORT_COPIES for most in every]
            assert len(session.copies) == sum(map(operator.mul, due, session._pace.calls))


def test_what_is_usual_never_falls_again(harness: Harness, root: Candidate) -> None:
    """Who leaves out more and more would else be short beside nothing."""
    # given a session whose messages were long until many were seen, and short after that
    arms = {INCUMBENT: harness._artifact(root), CANDIDATE: harness._artifact(root)}
    with harness._session(arms) as session:
        for message_ns in [1000] * MANY_MESSAGES + [900] * 200:
            session._sample(CANDIDATE, 0, [Elapsed(message_ns, message_ns)])
        # then
        assert session._suspicious_ns(CANDIDATE, 0) == round(SUSPICIOUS_RATIO * 1000)


def test_candidates_are_audited_side_by_side(root: Candidate, audited: Callable[[Candidate], AuditOutcome]) -> None:
    versions = [edited(root, "* f;", "* f;" + " " * n, f"i{n:04}") for n in range(1, 4)]
    outcomes: dict[str, AuditOutcome] = {}
    threads = [
        threading.Thread(target=lambda c=version: outcomes.__setitem__(c.name, audited(c))) for version in versions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["i0001", "i0002", "i0003"]
    for outcome in outcomes.values():
        assert outcome.verdict is Correctness.VERIFIED, outcome.evidence


def test_a_slow_compilation_is_stopped(scale: Operator, root: Candidate, lock_path: Path) -> None:
    limits = replace(LIMITS, build_s=1.0)
    bomb = edited(root, "#include <stdint.h>", f"#include <stdint.h>\n{_macro_bomb()}")
    with Harness(scale, timing_lock=lock_path, limits=limits) as harness:
        started = time.monotonic()
        outcome = harness.audit(bomb, root, lambda: root)
    assert outcome.verdict is Correctness.BUILD_TIMEOUT, outcome.evidence
    assert time.monotonic() - started < 20


def _macro_bomb() -> str:
    lines = ["#define A0 1"] + [f"#define A{n} A{n - 1}+A{n - 1}" for n in range(1, 29)]
    return "\n".join([*lines, "static int bomb = A28;"])


def test_a_large_source_is_built_in_parts_and_whole_where_that_fails(harness: Harness, root: Candidate) -> None:
    ((file, text),) = root.sources.items()
    large = Candidate("large", {file: text + "// " + "x" * LARGE_SOURCE_BYTES + "\n"})
    builder = harness._builder(harness._sandbox)
    whole = replace(builder, large_flags=()).build(large)
    parts = builder.build(large)
    assert parts.resources.keys() == whole.resources.keys()
    unlinkable = replace(builder, large_flags=("-Wl,--no-such-flag",))
    assert unlinkable.build(large).digest == whole.digest


def test_a_box_that_does_not_work_refuses_every_audit(
    scale: Operator, root: Candidate, lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: "/bin/false")
    with Harness(scale, sandbox=Sandbox(SandboxKind.BUBBLEWRAP), timing_lock=lock_path) as harness:
        outcome = harness.audit(root, root, lambda: root)
        timing = harness.time(root, root, lambda: root)
    assert outcome.verdict is Infrastructure.SANDBOX_REFUSED
    assert timing.verdict is Infrastructure.SANDBOX_REFUSED
    assert "bubblewrap" in outcome.evidence


def test_a_replaced_compiler_is_another_environment(
    harness: Harness, root: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness_module, "_stamp", lambda path: (0, 0, 0))
    assert harness.audit(root, root, lambda: root).verdict is Infrastructure.ENVIRONMENT_CHANGED


def test_an_artifact_that_is_not_the_one_built_is_refused(
    harness: Harness, root: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = harness._artifact(root)
    monkeypatch.setitem(harness._artifacts, root.digest, replace(built, image=built.image + b"\0"))
    outcome = harness.audit(root, root, lambda: root)
    assert outcome.verdict is Correctness.WRONG_ARTIFACT


def test_an_audit_leaves_neither_process_nor_file_nor_descriptor(
    scale: Operator, root: Candidate, lock_path: Path
) -> None:
    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def children() -> set[str]:
        tasks = Path("/proc/self/task").iterdir()
        return {pid for task in tasks for pid in (task / "children").read_text().split()}

    others = children()
    with Harness(scale, timing_lock=lock_path) as harness:
        harness.audit(root, root, lambda: root)
        before = open_descriptors()
        harness.audit(edited(root, "* f;", "* f;  "), root, lambda: root)
        harness.audit(edited(root, "* f;", "* f; __builtin_trap();"), root, lambda: root)
        assert open_descriptors() == before
        scratch = harness._scratch
        assert list(scratch.iterdir()) == []
    assert not scratch.exists()
    assert children() <= others


_VICTIM = """
import sys
from pathlib import Path
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind
from kernelbraid.kernels.operators.operator import load_operator

operator = load_operator(sys.argv[1])
sources = dict(operator.root_sources())
sources["scale.c"] = sources["scale.c"].replace("for (int64_t i", "for (volatile int j = 0;; j++);\\n for (int64_t i")
with Harness(operator, sandbox=Sandbox(SandboxKind(sys.argv[2])), limits=Limits(call_s=120)) as harness:
    candidate = Candidate("loop", sources)
    harness.audit(candidate, candidate, lambda: candidate)
"""


_AUDIT = """
import sys
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.operators.operator import load_operator

operator = load_operator(sys.argv[1])
root = Candidate("root", operator.root_sources())
with Harness(operator) as harness:
    print(harness.audit(root, root, lambda: root).verdict.value)
print(*sorted({"torch", "triton", "multiprocessing"} & set(sys.modules)))
"""


def test_an_audit_loads_no_framework_into_the_auditor(scale: Operator) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AUDIT, str(scale.folder)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "verified\n\n", done.stdout + done.stderr


def test_children_die_with_a_killed_auditor(harness: Harness, scale: Operator) -> None:
    """Given a candidate in an endless loop, when its auditor is killed, then its process is gone too."""
    kind = harness.environment().sandbox
    victim = subprocess.Popen([sys.executable, "-c", _VICTIM, str(scale.folder), kind])
    runners = _wait_for(lambda: _runners_below(victim.pid), lambda found: len(found) >= 2)
    assert len(runners) >= 2
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert _wait_for(lambda: [pid for pid in runners if _alive(pid)], lambda left: not left) == []


def _wait_for(look: Callable[[], list[int]], enough: Callable[[list[int]], bool]) -> list[int]:
    deadline = time.monotonic() + 20
    while not enough(found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _runners_below(pid: int) -> list[int]:
    """Processes named runner that descend from `pid`."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    below = {pid}
    for _ in range(4):
        below |= {child for child, parent in parents.items() if parent in below}
    return [child for child in below if _name(child) == "runner"]


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
