"""Compile every kernel that a Triton candidate launches, on a machine with or without a GPU.

Run as `python -I build.py SPECIFICATION` in the folder of the sources; it holds the candidate's host code and is
therefore never trusted. The host code is called for every shape on tensors without data; its launches compile and
are recorded, nothing runs. SPECIFICATION is JSON: {"architecture": 90, "calls": [[symbol, [[dtype, shape], ...]]],
"launchers": a cache with launch stubs and Triton's digest of itself to begin with, or nothing, "workers": processes
that compile side by side}.
Leaves ARTIFACT, a zip of the sources and of Triton's cache (metadata and machine code), and RESOURCES.
"""

import hashlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARTIFACT = "kernel.zip"
RESOURCES = "resources.json"
CACHE = "cache"
SAID = "said"
"""Folder with what ptxas said of kernels that were compiled ahead, by the digest of their machine code."""
KEY = "triton_key.json"
SHARED_BYTES = {80: 166_912, 90: 232_448}
"""Shared memory that one block may have, by compute capability (CUDA C++ Programming Guide)."""
_REGISTERS = re.compile(r"Used (\d+) registers")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: what it takes of a multiprocessor."""

    name: str
    digest: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    warps: int
    stages: int


@dataclass
class Recorder:
    """A device driver for Triton that loads and launches nothing, and keeps what it was asked for.

    `log` is where ptxas writes; the text since the last kernel is the next one's.
    """

    architecture: int
    log: io.StringIO
    kernels: dict[str, Kernel] = field(default_factory=dict)
    launches: list[tuple[str, tuple[int, int, int]]] = field(default_factory=list)
    launchers: "Launchers" = field(default_factory=lambda: Launchers())
    metadata: Any = None

    @property
    def utils(self) -> "Recorder":
        """Triton asks its driver's utilities for properties and to load machine code."""
        return self

    def get_current_target(self) -> Any:
        """The GPU to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        """The one device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """What Triton checks a kernel against."""
        return {"max_shared_mem": SHARED_BYTES[self.architecture]}

    def load_binary(self, name: str, cubin: bytes, shared_bytes: int, device: int) -> tuple[int, int, int, int, int]:
        """Record a kernel; its registers and spills are ptxas's own words."""
        digest = hashlib.sha256(cubin).hexdigest()
        said = self.take_log()
        if digest not in self.kernels:
            ahead = Path(SAID) / digest
            self.kernels[digest] = self._kernel(
                name, digest, shared_bytes, ahead.read_text() if ahead.exists() else said
            )
        kernel = self.kernels[digest]
        most_threads = 65_536 // max(1, kernel.registers) // 128 * 128
        return 0, 0, kernel.registers, kernel.spill_bytes, min(1024, most_threads)

    def take_log(self) -> str:
        """What was printed since the last time."""
        said = self.log.getvalue()
        self.log.truncate(self.log.seek(0))
        return said

    def _kernel(self, name: str, digest: str, shared_bytes: int, said: str) -> Kernel:
        registers, frame = _REGISTERS.search(said), _FRAME.search(said)
        if registers is None or frame is None:
            raise RuntimeError(f"{name}: ptxas did not say what it takes")
        stack, stores, loads = map(int, frame.groups())
        parts = (int(registers[1]), shared_bytes, stack, stores + loads)
        return Kernel(name, digest, *parts, self.metadata.num_warps, self.metadata.num_stages)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What a launch calls, made once for each kernel and just before it is loaded."""
        self.metadata = metadata
        self.launchers.add(source, metadata)

        def launch(x: int, y: int, z: int, *_: Any) -> None:
            self.launches.append((metadata.name, (x, y, z)))

        return launch


class Launchers:
    """The C stubs that Triton launches kernels with, compiled beside the kernels where there is a CUDA driver.

    Without one nothing can be launched anyway; with one, a process that may not start a compiler finds them here.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor()
        self._pending: list[Future[Any]] = []
        self._driver = _cuda_driver()

    def compile(self, source: Any, metadata: Any) -> None:
        """The stub of one kernel, here and now."""
        if self._driver is not None:
            self._driver.CudaLauncher(source, metadata)

    def add(self, source: Any, metadata: Any) -> None:
        """Begin to compile the stub of one kernel, and with the first one what all of them need."""
        if self._driver is not None:
            if not self._pending:
                self._pending.append(self._pool.submit(self._driver.CudaUtils))
            self._pending.append(self._pool.submit(self._driver.CudaLauncher, source, metadata))

    def finish(self) -> None:
        """Wait for all of them; raises what went wrong."""
        for future in self._pending:
            future.result()


def _cuda_driver() -> Any:
    """Triton's driver module, or None on a machine without libcuda."""
    from triton.backends.nvidia import driver

    try:
        driver.libcuda_dirs()
    except (AssertionError, OSError, subprocess.SubprocessError):
        return None
    return driver


def main(specification: str) -> int:
    """Build in the current folder; 0, or 1 after one line that begins with `error:` and a traceback."""
    started = time.perf_counter()
    wanted = json.loads(specification)
    sys.path[:0] = [str(HERE), str(Path.cwd())]
    if launchers := wanted.get("launchers"):
        shutil.copytree(launchers, CACHE, dirs_exist_ok=True)
    try:
        keep_key()
        recorder = Recorder(wanted["architecture"], io.StringIO())
        launches = compile_calls(recorder, wanted["calls"], wanted.get("workers", 1))
        recorder.launchers.finish()
    except Exception as error:  # noqa: BLE001 candidate code may raise anything, and this process ends with it
        print(f"error: {_summary(error)}")
        traceback.print_exc(limit=-4, file=sys.stdout)
        return 1
    kernels = sorted(recorder.kernels.values(), key=lambda kernel: (kernel.name, kernel.digest))
    Path(RESOURCES).write_text(json.dumps(_facts(kernels, launches, time.perf_counter() - started)))
    pack({"kernels": [asdict(kernel) for kernel in kernels], "launches": launches})
    return 0


def keep_key() -> None:
    """Triton's digest of itself, which takes half a second, beside the launch stubs; taken from there if it is."""
    from triton.runtime import cache

    path = Path(CACHE) / "installation" / KEY
    if path.exists():
        key = json.loads(path.read_text())
        cache.triton_key = lambda: key
    else:
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(cache.triton_key()))


def compile_calls(recorder: Recorder, calls: list[Any], workers: int = 1) -> list[Any]:
    """Call the host code for each call; [[symbol, [[kernel, grid], ...]], ...] in the calls' order.

    With several workers, kernels are compiled ahead side by side: the host code is called once more before.
    """
    from triton.runtime import driver

    driver.set_active(recorder)
    with redirect_stdout(recorder.log):
        module = importlib.import_module("kernel")
        if workers > 1:
            _compile_ahead(recorder, _needed(recorder, module, calls), workers)
        return [[symbol, _launches(recorder, module, symbol, tensors)] for symbol, tensors in calls]


class _Later(Executor):
    """Keeps what Triton would compile in the background: a function for each kernel."""

    def __init__(self) -> None:
        self.kernels: list[Callable[[], Any]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that has failed, so that Triton takes no kernel for compiled."""
        self.kernels.append(function)
        future = Future[Any]()
        future.set_exception(RuntimeError("to be compiled by another process"))
        return future


def _needed(recorder: Recorder, module: Any, calls: list[Any]) -> list[Callable[[], Any]]:
    """What compiles each kernel that the calls launch. Whatever fails will fail again where it is looked at."""
    import triton
    from triton.runtime.jit import JITFunction

    later, launched = _Later(), JITFunction.run
    JITFunction.run = lambda self, *args, **kwargs: launched(self, *args, **{**kwargs, "warmup": True})
    try:
        with suppress(Exception), triton.AsyncCompileMode(later, ignore_errors=True):
            for symbol, tensors in calls:
                _launches(recorder, module, symbol, tensors)
    finally:
        JITFunction.run = launched
    return later.kernels


def _compile_ahead(recorder: Recorder, kernels: Sequence[Callable[[], Any]], workers: int) -> None:
    """Fill Triton's cache, by processes that take the next kernel from a pipe; what they do not do is done later."""
    Path(SAID).mkdir()
    queue, numbers = os.pipe()
    os.write(numbers, b"".join(number.to_bytes(2, "little") for number in range(len(kernels))))
    os.close(numbers)
    pids = []
    for _ in range(min(workers, len(kernels))):
        pids.append(os.fork())
        if pids[-1] == 0:
            _work(recorder, kernels, queue)
    os.close(queue)
    for pid in pids:
        os.waitpid(pid, 0)


def _work(recorder: Recorder, kernels: Sequence[Callable[[], Any]], queue: int) -> None:
    """A worker's whole life. The first kernel that fails ends it for all: nothing else is of use then."""
    try:
        while number := os.read(queue, 2):
            recorder.take_log()
            kernel = kernels[int.from_bytes(number, "little")]()
            (Path(SAID) / hashlib.sha256(kernel.kernel).hexdigest()).write_text(recorder.take_log())
            recorder.launchers.compile(kernel.src, kernel.metadata)
    finally:
        while os.read(queue, 1 << 16):
            pass
        os._exit(0)


def _launches(recorder: Recorder, module: Any, symbol: str, tensors: list[Any]) -> list[Any]:
    import torch

    arguments = [torch.empty(shape, dtype=vars(torch)[name]) for name, shape in tensors]
    recorder.launches = []
    try:
        result = vars(module)[symbol](*arguments)
    except Exception as error:
        error.add_note(f"in {symbol}({', '.join(f'{name}{shape}' for name, shape in tensors)})")
        raise
    if result is not None:
        raise TypeError(f"{symbol} returned something; its results belong into its last arguments")
    return recorder.launches


def _summary(error: Exception) -> str:
    """The error, its cause and where it happened, in one line."""
    parts = [f"{type(error).__name__}: {error}"]
    if error.__cause__ is not None:
        parts.append(f"{type(error.__cause__).__name__}: {error.__cause__}")
    text = "; ".join([*parts, *getattr(error, "__notes__", [])])
    return " ".join(text.split())[:2000]


def _facts(kernels: list[Kernel], launches: list[Any], compile_s: float) -> dict[str, float]:
    def most(key: str) -> float:
        return float(max((vars(kernel)[key] for kernel in kernels), default=0))

    return {
        "kernels": float(len(kernels)),
        "registers": most("registers"),
        "shared_bytes": most("shared_bytes"),
        "stack_bytes": most("stack_bytes"),
        "spill_bytes": most("spill_bytes"),
        "launches": float(max((len(found) for _, found in launches), default=0)),
        "compile_s": compile_s,
    }


def pack(manifest: dict[str, Any]) -> None:
    """The artifact: the same bytes for the same sources and machine code."""
    members = {"manifest.json": json.dumps(manifest, indent=1).encode()}
    members |= {f"sources/{path.name}": path.read_bytes() for path in Path().glob("*.py")}
    for path in Path(CACHE).glob("*/*"):
        if path.suffix in (".cubin", ".json", ".so") and not path.name.startswith("__grp__"):
            members[f"{CACHE}/{path.parent.name}/{path.name}"] = path.read_bytes()
    with zipfile.ZipFile(ARTIFACT, "w") as artifact:
        for name in sorted(members):
            artifact.writestr(zipfile.ZipInfo(name), members[name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
