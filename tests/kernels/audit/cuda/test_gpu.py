"""The runner on a GPU, from its parts to a whole audit. Every test stands alone and prints what it measured.

python -m pytest tests/kernels/audit/cuda -m gpu -s
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelbraid.kernels.audit.cuda.build import CompilerFacts, DeviceBuilder, bare
from kernelbraid.kernels.audit.cuda.clock import CONFIRMATION, GROUPS_PER_START, DeviceSession
from kernelbraid.kernels.audit.cuda.driver import CudaDevice, device_count
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.cuda.launcher import Settings, Zygote
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs, DeviceOutputs
from kernelbraid.kernels.audit.cuda.runner import DeviceRunner, Starter
from kernelbraid.kernels.audit.cuda.sanitizer import Sanitizer, find_sanitizer
from kernelbraid.kernels.audit.failure import AuditFailure, CandidateFailed
from kernelbraid.kernels.audit.layout import plan_layout
from kernelbraid.kernels.audit.limits import MIB, Limits
from kernelbraid.kernels.audit.native import native_programs
from kernelbraid.kernels.audit.opening import open_harness
from kernelbraid.kernels.audit.outcome import Candidate, Correctness
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind
from kernelbraid.kernels.audit.statistics import decide, group_log_ratios, workload_log_ratios
from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import Operator, load_operator, operator_targets
from kernelbraid.kernels.toolchains.cc import find_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not device_count(), reason="no NVIDIA GPU here")]

LIMITS = Limits(build_s=30, load_s=30, call_s=3.0, message_bytes=4 * MIB)
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def _scale(x, w, f, y, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < width
    product = tl.load(x + row * width + at, mask=keep) * tl.load(w + at, mask=keep)
    tl.store(y + row * width + at, product * tl.load(f + row), mask=keep)

def scale_full(x, w, f, y):
    rows, width = x.shape
    _scale[(rows, triton.cdiv(width, 256))](x, w, f, y, width, BLOCK=256)

scale_decode = scale_full
"""
STRAY = KERNEL.replace("tl.store(y + row", "tl.store(y + (row + 1) * 2000000000")
ENDLESS = KERNEL.replace(
    "    tl.store(",
    "    while tl.load(w, volatile=True) == tl.load(w, volatile=True):\n        tl.atomic_add(y, 1.0)\n    tl.store(",
)
KEEPS_STATE = (
    KERNEL.partition("def scale_full")[0]
    + """
import torch

@triton.jit
def _count(kept, y):
    tl.store(kept, tl.load(kept) * 0.5 + 1.0)
    tl.store(y, tl.load(y) + tl.load(kept))

def scale_full(x, w, f, y):
    rows, width = x.shape
    _scale[(rows, triton.cdiv(width, 256))](x, w, f, y, width, BLOCK=256)
    _count[(1,)](torch.empty(1, device=x.device), y)

scale_decode = scale_full
"""
)
EMPTY = "def scale_full(*tensors): pass\nscale_decode = scale_full\n"
SYMBOLS = ("scale_full", "scale_decode")


def said(**facts: object) -> None:
    """One line of measurements."""
    print("\n  ", json.dumps(facts, default=str), flush=True)


@contextmanager
def explained() -> Iterator[None]:
    """A failure with all that the process printed."""
    try:
        yield
    except AuditFailure as failure:
        pytest.fail(f"{failure.verdict}: {failure.evidence}\n{failure.log.decode(errors='replace')}")


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    """The GPU, owned by this process."""
    device = CudaDevice()
    yield device
    device.close()


@pytest.fixture(scope="module", params=["boxed", "open"])
def starter(
    request: pytest.FixtureRequest, device: CudaDevice, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Starter]:
    """A zygote, with the box and without."""
    library = native_programs(find_compiler()).box if request.param == "boxed" else None
    scratch = tmp_path_factory.mktemp("scratch")
    settings = Settings("cuda", library, scratch, (), device.facts.visible, device.facts.paths)
    started = time.monotonic()
    with explained():
        zygote = Zygote(settings)
    said(zygote=request.param, start_s=time.monotonic() - started, versions=dict(zygote.versions))
    shared = device.share((device.allocate(16 * MIB), device.allocate(16 * MIB)))
    yield Starter(zygote, LIMITS, scratch, shared)
    zygote.close()


class Loaded(DeviceRunner):
    """A process that knows its candidate's text from the start."""

    def __init__(self, text: str, *parts: Any) -> None:
        super().__init__(*parts)
        self.artifact = bare({"kernel.py": text})


@pytest.fixture
def runner_of(starter: Starter, device: CudaDevice) -> Callable[..., Loaded]:
    """A process for the text of a kernel.py, on buffers of its own."""

    def start(text: str, graphs: bool, limits: Limits = LIMITS) -> Loaded:
        inputs, outputs = device.allocate(16 * MIB), device.allocate(16 * MIB)
        own = Starter(starter.zygote, limits, starter.scratch, device.share((inputs, outputs)))
        return Loaded(text, own, DeviceInputs(device, inputs), DeviceOutputs(device, outputs), graphs)

    return start


def call_once(runner: Loaded, scale: Operator, rows: int = 7, width: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Found and expected."""
    layout = plan_layout(0, [(scale.entry("scale_full"), {"rows": rows, "width": width})])
    runner.load(runner.artifact, SYMBOLS)
    runner.prepare(layout)
    rng = np.random.default_rng(1)
    values = {place.tensor.name: rng.standard_normal(place.shape, np.float32) for place in layout.calls[0].inputs}
    for place in layout.calls[0].inputs:
        runner.inputs.fill(place, values[place.tensor.name])
    runner.outputs.poison(layout)
    started = time.monotonic()
    answered = runner.go(layout, freeze=True)
    said(first_go_s=time.monotonic() - started, answered=answered)
    assert runner.outputs.first_broken_canary(layout) is None
    return runner.outputs.read(layout.calls[0].outputs[0]), values["x"] * values["w"] * values["f"][:, None]


def test_owner_moves_bytes(device: CudaDevice) -> None:
    said(facts=device.facts)
    one, other = device.allocate(4 * MIB), device.allocate(4 * MIB)
    data = np.random.default_rng(0).integers(0, 256, 3 * MIB, np.uint8)
    device.upload(one, 64, data)
    device.copy(other, 0, one, 64, data.size)
    device.fill(other, 0, 16, 0x01020304)
    device.flush()
    device.settle()
    found = device.download(other, 0, data.size)
    assert bytes(found[:16]) == bytes((4, 3, 2, 1)) * 4
    assert np.array_equal(found[16:], data[16:])
    took = [_timed(lambda: device.download(other, 0, 4096)) for _ in range(50)]
    sweeps = [_timed(lambda: (device.flush(), device.settle())) for _ in range(50)]
    said(slice_us=statistics.median(took) / 1000, sweep_us=statistics.median(sweeps) / 1000)


@pytest.mark.parametrize("size", [1, 3, 4, 4099, 3 * MIB + 2])
def test_owner_compares_bytes_on_the_device(device: CudaDevice, size: int) -> None:
    one, other = device.allocate(4 * MIB), device.allocate(4 * MIB)
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    device.upload(one, 64, data)
    device.upload(other, 128, data)
    device.fill(one, 0, 64, 1)
    assert not device.differs(one, 64, other, 128, size)
    for place in {0, size // 2, size - 1}:
        changed = data.copy()
        changed[place] ^= 1
        device.upload(other, 128, changed)
        assert device.differs(one, 64, other, 128, size)
    said(size=size, compare_us=_timed(lambda: device.differs(one, 64, other, 128, size)) / 1000)


def test_sensors_are_read(device: CudaDevice) -> None:
    said(conditions=device.conditions(), read_us=_timed(device.conditions) / 1000)
    now = device.conditions()
    assert now is not None
    assert now.sm_mhz > 0


def test_process_opens_the_memory(runner_of: Callable[..., Loaded], starter: Starter) -> None:
    times = []
    for _ in range(3):
        started = time.monotonic()
        with explained(), runner_of(EMPTY, True) as runner:
            times.append(time.monotonic() - started)
            runner.load(runner.artifact, SYMBOLS)
    said(start_s=times, zygote_said=starter.zygote.printed()[-500:].decode(errors="replace"))


@pytest.mark.parametrize("more", ["/dev/shm", "/tmp", "/run", "/var"])
def test_box_needs_no_further_path(starter: Starter, device: CudaDevice, more: str, tmp_path: Path) -> None:
    """Runs only where the box keeps a process from its device: which further path would let it."""
    if starter.zygote.settings.library is None or _starts(starter, device):
        pytest.skip("the box is wide enough")
    zygote = Zygote(replace(starter.zygote.settings, scratch=tmp_path, devices=(*device.facts.paths, more)))
    works = _starts(Starter(zygote, LIMITS, tmp_path, starter.shared), device)
    zygote.close()
    said(more=more, works=works)
    pytest.fail(f"with {more} it {'starts' if works else 'does not start either'}")


def _starts(starter: Starter, device: CudaDevice) -> bool:
    buffer = device.allocate(16 * MIB)
    runner = DeviceRunner(starter, DeviceInputs(device, buffer), DeviceOutputs(device, buffer))
    try:
        runner.started()
    except AuditFailure as failure:
        said(evidence=failure.evidence, log=failure.log.decode(errors="replace")[-1500:])
        return False
    finally:
        runner.close()
    return True


def test_processes_start_side_by_side(runner_of: Callable[..., Loaded]) -> None:
    for count in (2, 4, 8):
        started = time.monotonic()
        runners = [runner_of(EMPTY, True) for _ in range(count)]
        try:
            with explained():
                for runner in runners:
                    runner.started()
            said(count=count, all_started_s=time.monotonic() - started)
        finally:
            ending = time.monotonic()
            for runner in runners:
                runner.close()
            said(count=count, all_ended_s=time.monotonic() - ending)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graph"])
def test_kernel_gives_the_reference_bits(runner_of: Callable[..., Loaded], scale: Operator, graphs: bool) -> None:
    with explained(), runner_of(KERNEL, graphs) as runner:
        found, expected = call_once(runner, scale)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_box_denies_what_a_kernel_has_no_use_for(
    runner_of: Callable[..., Loaded], scale: Operator, starter: Starter
) -> None:
    attempts = """
import os, socket, signal
def denied(attempt):
    try:
        attempt()
    except OSError as error:
        return float(error.errno)
    return 0.0
ATTEMPTS = (
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    lambda: socket.socket(socket.AF_UNIX),
    lambda: os.setsid(),
    lambda: os.setpgid(0, 0),
    lambda: os.kill(os.getppid(), 0),
    lambda: open("/etc/passwd"),
    lambda: open("/tmp/kernelbraid-was-here", "w"),
    lambda: open(f"/proc/{os.getppid()}/mem", "rb"),
)
def scale_full(x, w, f, y):
    y.zero_()
    for index, attempt in enumerate(ATTEMPTS):
        y.view(-1)[index] = denied(attempt)
scale_decode = scale_full
"""
    with explained(), runner_of(attempts, False) as runner:
        found, _ = call_once(runner, scale)
    said(errors=[int(error) for error in found.reshape(-1)[:8]], boxed=starter.zygote.settings.library is not None)
    if starter.zygote.settings.library:
        assert all(found.reshape(-1)[:8] > 0)


def test_message_floor_and_its_spread(runner_of: Callable[..., Loaded], scale: Operator, device: CudaDevice) -> None:
    layout = plan_layout(0, [(scale.entry("scale_full"), {"rows": 64, "width": 512})] * 64)
    for name, text in {"empty": EMPTY, "kernel": KERNEL}.items():
        with explained(), runner_of(text, True) as runner:
            runner.load(runner.artifact, SYMBOLS)
            runner.prepare(layout)
            device.fill(runner.inputs.buffer, 0, 16 * MIB, 0x3F800000)
            device.settle()
            started = time.monotonic()
            runner.capture(layout)
            capture_s = time.monotonic() - started
            answers = []
            for _ in range(300):
                runner.begin_sweep()
                runner.outputs.poison(layout)
                device.flush()
                device.settle()
                runner.end_sweep()
                answers.append(runner.release(layout, lambda: device.download(runner.outputs.buffer, 4096, 4096)))
        walls, own = ([answer[side] / 1000 for answer in answers[20:]] for side in (0, 1))
        said(
            candidate=name,
            capture_s=capture_s,
            wall_us=statistics.median(walls),
            wall_quartiles_us=statistics.quantiles(walls),
            events_us=statistics.median(own),
        )


def test_fault_is_a_crash_and_the_next_process_is_right(runner_of: Callable[..., Loaded], scale: Operator) -> None:
    started = time.monotonic()
    with pytest.raises(CandidateFailed) as caught, runner_of(STRAY, False) as runner:
        call_once(runner, scale)
    said(verdict=caught.value.verdict, evidence=caught.value.evidence, took_s=time.monotonic() - started)
    with explained(), runner_of(KERNEL, False) as runner:
        found, expected = call_once(runner, scale)
    assert np.array_equal(found, expected)
    assert caught.value.verdict is Correctness.CRASHED


def test_endless_kernel_is_hung_and_the_next_process_is_right(
    runner_of: Callable[..., Loaded], scale: Operator
) -> None:
    started = time.monotonic()
    limits = Limits(build_s=4, call_s=2, load_s=30)
    with pytest.raises(CandidateFailed) as caught, runner_of(ENDLESS, False, limits) as runner:
        call_once(runner, scale)
    said(verdict=caught.value.verdict, evidence=caught.value.evidence, took_s=time.monotonic() - started)
    with explained(), runner_of(KERNEL, False) as runner:
        found, expected = call_once(runner, scale)
    assert np.array_equal(found, expected)
    assert caught.value.verdict is Correctness.HUNG


def test_ceilings_are_measured(runner_of: Callable[..., Loaded]) -> None:
    started = time.monotonic()
    with explained(), runner_of(EMPTY, False) as runner:
        found = runner.measured()
    said(measured=found, took_s=time.monotonic() - started)
    assert found["flop_per_s"] > 1e12


def trust(sources: Mapping[str, str]) -> None:
    """These tests are about the runner, not about what a source may say."""


@pytest.fixture(scope="module")
def harness(scale: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceHarness]:
    """A whole harness, which owns its device."""
    compiler = CompilerFacts("triton", "", (), "")
    make = {
        "sandbox": Sandbox(SandboxKind.NONE),
        "timing_lock": tmp_path_factory.mktemp("lock") / "device.lock",
        "limits": LIMITS,
    }
    started = time.monotonic()
    with explained(), DeviceHarness(scale, CudaDevice(), compiler, lambda *_: DeviceBuilder(trust), **make) as harness:
        said(harness_s=time.monotonic() - started, environment=harness.environment())
        yield harness


def test_audits_of_broken_candidates(harness: DeviceHarness) -> None:
    root = Candidate("i0000", {"kernel.py": KERNEL})
    broken = {
        Correctness.INACCURATE: KERNEL.replace("product *", "1.01 * product *"),
        Correctness.DISAGREEMENT: KERNEL + "\ndef scale_decode(x, w, f, y):\n    y.copy_(x * f[:, None] * w)\n",
        Correctness.OUTPUT_NOT_WRITTEN: KERNEL.replace("keep = at < width", "keep = at < width - 1"),
        Correctness.INPUT_WRITTEN: KERNEL.replace(
            "    tl.store(", "    tl.store(w + at, 1.0, mask=keep)\n    tl.store("
        ),
        Correctness.GUARD_OVERWRITTEN: KERNEL.replace("y + row * width + at, p", "y + row * width + at - 1, p"),
        Correctness.NONDETERMINISTIC: KEEPS_STATE,
        Correctness.LOAD_FAILED: "import nothing_of_that_name\n",
        Correctness.BUILD_FAILED: KERNEL.replace("tl.load(f + row)", "no_such_name"),
        Correctness.FORBIDDEN_CALL: KERNEL.replace("    rows, width", "    print(x.sum().item())\n    rows, width"),
        Correctness.EXITED_EARLY: KERNEL.replace("    rows, width", "    import os; os._exit(0)\n    rows, width"),
    }
    found = {}
    for expected, text in broken.items():
        started = time.monotonic()
        outcome = harness.audit(Candidate("i0001", {"kernel.py": text}), root, lambda: root)
        found[expected] = outcome.verdict
        seconds = {"check_s": outcome.check_s, "timing_s": outcome.timing_s, "took_s": time.monotonic() - started}
        said(expected=expected, verdict=outcome.verdict, evidence=outcome.evidence[:300], **seconds)
        if outcome.verdict != expected:
            print(outcome.log.decode(errors="replace")[-2000:])
    assert {name.value: name.value for name in found} == {name.value: verdict.value for name, verdict in found.items()}


@pytest.fixture(scope="module")
def rms_norm() -> Operator:
    """A packaged operator, compiled ahead."""
    return load_operator("rms_norm", "triton")


@pytest.fixture(scope="module")
def packaged(rms_norm: Operator) -> Iterator[DeviceHarness]:
    """The harness as the command line opens it."""
    pytest.importorskip("triton")
    started = time.monotonic()
    with explained(), open_harness(rms_norm, "triton") as harness:
        assert isinstance(harness, DeviceHarness)
        said(harness_s=time.monotonic() - started, environment=harness.environment(), refusal=harness._refusal)
        yield harness


def test_packaged_root_is_audited_in_time(packaged: DeviceHarness, rms_norm: Operator) -> None:
    root = Candidate("i0000", rms_norm.root_sources())
    for name, sources in {
        "the root": dict(rms_norm.root_sources()),
        "the same": {"kernel.py": rms_norm.root_sources()["kernel.py"] + "\n"},
        "slower": {"kernel.py": rms_norm.root_sources()["kernel.py"].replace("WARPS = 8", "WARPS = 1")},
        "four warps": {"kernel.py": rms_norm.root_sources()["kernel.py"].replace("WARPS = 8", "WARPS = 4")},
    }.items():
        started = time.monotonic()
        outcome = packaged.audit(Candidate("i0001", sources), root, lambda: root)
        took_s = time.monotonic() - started
        said(
            candidate=name,
            verdict=outcome.verdict,
            evidence=outcome.evidence[:400],
            took_s=took_s,
            build_s=outcome.build_s,
            check_s=outcome.check_s,
            timing_s=outcome.timing_s,
            confirmed=outcome.confirmation is not None,
            latencies_us={name: round(1e6 * latency_s, 3) for name, latency_s in outcome.latencies_s.items()},
            resources=dict(outcome.resources),
            log=outcome.log.decode(errors="replace")[-600:],
        )
        assert outcome.verdict in (Correctness.VERIFIED, Correctness.DISAGREEMENT)


@pytest.mark.parametrize("name", ["linear", "attention"])
def test_other_packaged_roots_are_audited(name: str) -> None:
    if "triton" not in operator_targets(name):
        pytest.skip(f"{name} has no Triton implementation yet")
    operator = load_operator(name, "triton")
    root = Candidate("i0000", operator.root_sources())
    with explained(), open_harness(operator, "triton", Sandbox(SandboxKind.NONE)) as harness:
        for turn in ("first", "again"):
            started = time.monotonic()
            outcome = harness.audit(root, root, lambda: root)
            said(
                operator=name,
                turn=turn,
                verdict=outcome.verdict,
                evidence=outcome.evidence[:400],
                took_s=time.monotonic() - started,
                build_s=outcome.build_s,
                check_s=outcome.check_s,
                timing_s=outcome.timing_s,
                log=outcome.log.decode(errors="replace")[-600:],
            )
    assert outcome.verdict is Correctness.VERIFIED


def test_identical_candidates_by_groups(packaged: DeviceHarness, rms_norm: Operator) -> None:
    """Whether processes differ more than groups do inside one set of them."""
    artifact = packaged._artifact(Candidate("i0000", rms_norm.root_sources()))
    weights = {workload.name: workload.weight for workload in rms_norm.workloads}
    many = replace(CONFIRMATION, groups=5 * GROUPS_PER_START)
    with explained(), packaged._session({"root": artifact, "incumbent": artifact, "candidate": artifact}) as session:
        assert isinstance(session, DeviceSession)
        started = time.monotonic()
        blocks = session.run(many)
        said(took_s=time.monotonic() - started, pace=session.pace, floor_ns=blocks.floor_ns.tolist())
        ratios = group_log_ratios(blocks, weights, "candidate", "incumbent")
        by_start = ratios.reshape(-1, GROUPS_PER_START)
        said(
            group_log_ratios=np.round(by_start, 5).tolist(),
            sd=float(ratios.std(ddof=1)),
            sd_inside=float(np.sqrt(by_start.var(axis=1, ddof=1).mean())),
            sd_of_starts=float(by_start.mean(axis=1).std(ddof=1)),
        )
        said(medians_us={name: 1e6 * latency_s for name, latency_s in blocks.medians_s("candidate").items()})
        said(
            by_workload=np.round(workload_log_ratios(blocks, "candidate", "incumbent").std(axis=0, ddof=1), 5).tolist()
        )
        said(
            record=session.record.summary(),
            kept_busy=session.record.kept_busy(),
            disputed=session.record.disputed("candidate", float(np.median(blocks.floor_ns))),
        )
        own = {
            f"{arm} {index}": np.median(np.array(pairs), axis=0).tolist()
            for (arm, index), pairs in session.record.advisory_ns.items()
        }
        said(wall_and_own_ns=own)
        said(set_out_us={arm: statistics.median(times) / 1000 for arm, times in session.record.sweeps_ns.items()})
        report = os.environ.get("OUT")
        if report:
            Path(report, "identical.blocks").write_bytes(blocks.to_bytes())


def test_hundred_identical_candidates_are_not_promoted(packaged: DeviceHarness, rms_norm: Operator) -> None:
    """By the arithmetic of a campaign: the k-th confirmation has alpha 0.05 / (k (k + 1)), k rising by log order."""
    root = Candidate("i0000", rms_norm.root_sources())
    artifact = packaged._artifact(root)
    weights = {workload.name: workload.weight for workload in rms_norm.workloads}
    limits = {workload.name: workload.limit_ratio for workload in rms_norm.workloads}
    found, confirmed, started = [], 0, time.monotonic()
    for number in range(int(os.environ.get("IDENTICAL", "100"))):
        same = Candidate(f"i{number + 1:04}", {"kernel.py": f"{root.sources['kernel.py']}# {number}\n"})
        packaged._artifacts[same.digest] = artifact
        outcome = packaged.time(same, root, lambda: root)
        assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
        if outcome.confirmation is not None:
            confirmed += 1
            alpha = 0.05 / (confirmed * (confirmed + 1))
            decision = decide(outcome.confirmation, weights, limits, alpha, number)
            found.append(
                (decision.performance.value, round(decision.ratio, 5), round(decision.standard_error_ratio, 5))
            )
    said(took_s=time.monotonic() - started, confirmed=confirmed, decisions=found)
    assert "promotable" not in {performance for performance, _, _ in found}


@pytest.mark.parametrize("boxed", [True, False], ids=["boxed", "open"])
def test_sanitizer_finds_what_lies_beside_an_allocation(
    device: CudaDevice, scale: Operator, tmp_path: Path, boxed: bool
) -> None:
    program = find_sanitizer()
    if program is None:
        pytest.skip("compute-sanitizer is not installed")
    library = native_programs(find_compiler()).box if boxed else None
    settings = Settings("cuda", library, tmp_path, (), device.facts.visible, device.facts.paths)
    sanitizer = Sanitizer(program, settings, scale, load_reference(scale))
    started = time.monotonic()
    with explained():
        watched = sanitizer.check(bare({"kernel.py": KERNEL}))
    said(boxed=boxed, watched=watched, took_s=time.monotonic() - started)
    beside = KERNEL.replace("y + row * width + at, p", "y + row * width + at + 4096, p")
    with pytest.raises(CandidateFailed) as caught:
        sanitizer.check(bare({"kernel.py": beside}))
    said(verdict=caught.value.verdict, evidence=caught.value.evidence)
    assert caught.value.verdict is Correctness.GUARD_OVERWRITTEN


def _timed(action: Callable[[], object]) -> int:
    started = time.monotonic_ns()
    action()
    return time.monotonic_ns() - started
