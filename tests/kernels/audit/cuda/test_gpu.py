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

import numpy as np
import pytest

from kernelbraid.kernels.audit import plan
from kernelbraid.kernels.audit.cuda.build import CompilerFacts, DeviceBuilder, bare
from kernelbraid.kernels.audit.cuda.clock import DeviceSession
from kernelbraid.kernels.audit.cuda.driver import CudaDevice, device_count
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.cuda.launcher import Settings, Zygote
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs, DeviceOutputs
from kernelbraid.kernels.audit.cuda.runner import DeviceRunner, Starter
from kernelbraid.kernels.audit.failure import AuditFailure, CandidateFailed
from kernelbraid.kernels.audit.layout import plan_layout
from kernelbraid.kernels.audit.limits import MIB, Limits
from kernelbraid.kernels.audit.native import native_programs
from kernelbraid.kernels.audit.outcome import Candidate, Correctness
from kernelbraid.kernels.audit.statistics import group_log_ratios
from kernelbraid.kernels.operators.operator import Operator
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
    "    tl.store(", "    while tl.load(w) == tl.load(w):\n        keep = keep & (at >= 0)\n    tl.store("
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


@pytest.fixture
def runner_of(starter: Starter, device: CudaDevice) -> Callable[..., DeviceRunner]:
    """A process for the text of a kernel.py, on buffers of its own."""

    def start(text: str, graphs: bool, limits: Limits = LIMITS) -> DeviceRunner:
        inputs, outputs = device.allocate(16 * MIB), device.allocate(16 * MIB)
        own = Starter(starter.zygote, limits, starter.scratch, device.share((inputs, outputs)))
        return DeviceRunner(
            own, bare({"kernel.py": text}), DeviceInputs(device, inputs), DeviceOutputs(device, outputs), graphs
        )

    return start


def call_once(runner: DeviceRunner, scale: Operator, rows: int = 7, width: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Found and expected."""
    layout = plan_layout(0, [(scale.entry("scale_full"), {"rows": rows, "width": width})])
    runner.load(SYMBOLS)
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


def test_sensors_are_read(device: CudaDevice) -> None:
    said(conditions=device.conditions(), read_us=_timed(device.conditions) / 1000)
    now = device.conditions()
    assert now is not None
    assert now.sm_mhz > 0


def test_process_opens_the_memory(runner_of: Callable[..., DeviceRunner], starter: Starter) -> None:
    times = []
    for _ in range(3):
        started = time.monotonic()
        with explained(), runner_of(EMPTY, True) as runner:
            times.append(time.monotonic() - started)
            runner.load(SYMBOLS)
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
    runner = DeviceRunner(
        starter, bare({"kernel.py": EMPTY}), DeviceInputs(device, buffer), DeviceOutputs(device, buffer)
    )
    try:
        runner.started()
    except AuditFailure as failure:
        said(evidence=failure.evidence, log=failure.log.decode(errors="replace")[-1500:])
        return False
    finally:
        runner.close()
    return True


def test_processes_start_side_by_side(runner_of: Callable[..., DeviceRunner]) -> None:
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
def test_kernel_gives_the_reference_bits(runner_of: Callable[..., DeviceRunner], scale: Operator, graphs: bool) -> None:
    with explained(), runner_of(KERNEL, graphs) as runner:
        found, expected = call_once(runner, scale)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_box_denies_what_a_kernel_has_no_use_for(
    runner_of: Callable[..., DeviceRunner], scale: Operator, starter: Starter
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


def test_message_floor_and_its_spread(
    runner_of: Callable[..., DeviceRunner], scale: Operator, device: CudaDevice
) -> None:
    layout = plan_layout(0, [(scale.entry("scale_full"), {"rows": 64, "width": 512})] * 64)
    for name, text in {"empty": EMPTY, "kernel": KERNEL}.items():
        with explained(), runner_of(text, True) as runner:
            runner.load(SYMBOLS)
            runner.prepare(layout)
            device.fill(runner.inputs.buffer, 0, 16 * MIB, 0x3F800000)
            device.settle()
            started = time.monotonic()
            runner.capture(layout)
            capture_s = time.monotonic() - started
            answers = []
            for _ in range(300):
                runner.outputs.poison(layout)
                device.flush()
                device.settle()
                answers.append(runner.release(layout, lambda: device.download(runner.outputs.buffer, 4096, 4096)))
        walls, own = ([answer[side] / 1000 for answer in answers[20:]] for side in (0, 1))
        said(
            candidate=name,
            capture_s=capture_s,
            wall_us=statistics.median(walls),
            wall_quartiles_us=statistics.quantiles(walls),
            events_us=statistics.median(own),
        )


def test_fault_is_a_crash_and_the_next_process_is_right(
    runner_of: Callable[..., DeviceRunner], scale: Operator
) -> None:
    started = time.monotonic()
    with pytest.raises(CandidateFailed) as caught, runner_of(STRAY, False) as runner:
        call_once(runner, scale)
    said(verdict=caught.value.verdict, evidence=caught.value.evidence, took_s=time.monotonic() - started)
    with explained(), runner_of(KERNEL, False) as runner:
        found, expected = call_once(runner, scale)
    assert np.array_equal(found, expected)
    assert caught.value.verdict is Correctness.CRASHED


def test_endless_kernel_is_hung_and_the_next_process_is_right(
    runner_of: Callable[..., DeviceRunner], scale: Operator
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


def test_ceilings_are_measured(runner_of: Callable[..., DeviceRunner]) -> None:
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
    make = {"timing_lock": tmp_path_factory.mktemp("lock") / "device.lock", "limits": LIMITS}
    started = time.monotonic()
    with explained(), DeviceHarness(scale, CudaDevice(), compiler, lambda *_: DeviceBuilder(trust), **make) as harness:
        said(harness_s=time.monotonic() - started, environment=harness.environment())
        yield harness


def test_audits_of_identical_and_broken_candidates(harness: DeviceHarness) -> None:
    root = Candidate("i0000", {"kernel.py": KERNEL})
    broken = {
        Correctness.VERIFIED: KERNEL + "\n",
        Correctness.INACCURATE: KERNEL.replace("product *", "1.01 * product *"),
        Correctness.DISAGREEMENT: KERNEL + "\ndef scale_decode(x, w, f, y):\n    y.copy_(x * f[:, None] * w)\n",
        Correctness.OUTPUT_NOT_WRITTEN: KERNEL.replace("keep = at < width", "keep = at < width - 1"),
        Correctness.INPUT_WRITTEN: KERNEL.replace(
            "    tl.store(", "    tl.store(w + at, 1.0, mask=keep)\n    tl.store("
        ),
        Correctness.GUARD_OVERWRITTEN: KERNEL.replace("y + row * width + at, p", "y + row * width + at - 1, p"),
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


def test_identical_candidates_by_groups(harness: DeviceHarness, scale: Operator) -> None:
    artifact = harness._artifact(Candidate("i0000", {"kernel.py": KERNEL}))
    weights = {workload.name: workload.weight for workload in scale.workloads}
    with explained(), harness._session({"root": artifact, "incumbent": artifact, "candidate": artifact}) as session:
        started = time.monotonic()
        blocks = session.run(plan.CONFIRMATION)
        took_s = time.monotonic() - started
        assert isinstance(session, DeviceSession)
        ratios = group_log_ratios(blocks, weights, "candidate", "incumbent")
        said(
            took_s=took_s,
            pace=session.pace,
            floor_ns=blocks.floor_ns.tolist(),
            medians=dict(blocks.medians_s("candidate")),
        )
        said(group_log_ratios=[round(float(ratio), 5) for ratio in ratios], sd=float(ratios.std(ddof=1)))
        said(record=session.record.summary(), kept_busy=session.record.kept_busy(), disputed=session.record.disputed())
        own = {
            f"{arm} {index}": np.median(np.array(pairs), axis=0).tolist()
            for (arm, index), pairs in session.record.advisory_ns.items()
        }
        said(
            wall_and_own_ns=own,
            sweeps_us={arm: statistics.median(times) / 1000 for arm, times in session.record.sweeps_ns.items()},
        )
        report = os.environ.get("OUT")
        if report:
            Path(report, "identical.blocks").write_bytes(blocks.to_bytes())


def _timed(action: Callable[[], object]) -> int:
    started = time.monotonic_ns()
    action()
    return time.monotonic_ns() - started
