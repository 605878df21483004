"""Triton, as a compiler for the GPU: every kernel a candidate launches, compiled with or without a device.

A candidate's host code decides what is compiled, so it has to run for that; it does in a process of its own, on
tensors without data (without_device/build.py). Nothing here imports triton or torch.
Contraction is off (TRITON_DEFAULT_FP_FUSION=0): a source alone decides where a product is rounded before it is added.
"""

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from kernelbraid.kernels.operators.operator import Entry
from kernelbraid.kernels.toolchains.toolchain import Command, MissingToolchain

ARTIFACT = "kernel.zip"
RESOURCES = "resources.json"
CACHE = "cache"
BUILD = Path(__file__).parent / "without_device" / "build.py"
FLAGS = (
    "TRITON_DEFAULT_FP_FUSION=0",
    "TRITON_DISABLE_LINE_INFO=1",
    "TRITON_STORE_BINARY_ONLY=1",
)
"""Environment variables that decide the machine code; a process that loads the artifact sets the same ones, as they
are part of the names under which Triton looks for it."""
NEXT_STEP = "pip install 'kernelbraid[gpu]' (triton compiles on any Linux machine, with or without a GPU)"
_SYSTEM_READS = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/proc", "/sys")

TensorShapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The dtype and shape of each argument of an entry, inputs first."""


@dataclass(frozen=True)
class TritonCompiler:
    """Triton for one GPU architecture. `calls` are the shapes for which a candidate is compiled."""

    version: str
    digest: str
    python: Path
    architecture: str = "sm_90"
    calls: tuple[tuple[str, TensorShapes], ...] = ()
    name: str = "triton"
    flags: tuple[str, ...] = FLAGS
    launchers: Path | None = None
    """A Triton cache with what takes longer than kernels to compile and is the same for all candidates: launch stubs,
    which follow from kernels' signatures, and Triton's digest of itself."""
    workers: int = 1
    """Processes that compile kernels side by side."""

    def for_calls(self, calls: Iterable[tuple[Entry, Mapping[str, int]]]) -> "TritonCompiler":
        """The same compiler for these entries and dims, each pair once."""
        shaped = ((entry.symbol, _shapes(entry, dims)) for entry, dims in calls)
        return replace(self, calls=tuple(dict.fromkeys(shaped)))

    def command(self, sources: tuple[str, ...], flags: tuple[str, ...] = ()) -> Command:
        """Compile every kernel that the sources' entries launch for the calls; no flags are taken."""
        if flags:
            raise ValueError(f"Triton takes no flags, and these were given: {', '.join(flags)}")
        wanted = json.dumps(
            {
                "architecture": int(self.architecture.removeprefix("sm_")),
                "calls": self.calls,
                "launchers": str(self.launchers or ""),
                "workers": self.workers,
            }
        )
        return Command((str(self.python), "-I", "-B", str(BUILD), wanted), ARTIFACT)

    def environment(self, folder: Path) -> dict[str, str]:
        """Environment of a compilation in `folder`: its own cache, nothing of the caller's."""
        own = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": str(folder), "TMPDIR": str(folder)}
        return (
            own
            | dict(flag.split("=") for flag in self.flags)
            | {
                "TRITON_CACHE_DIR": str(folder / CACHE),
                "TRITON_DUMP_PTXAS_LOG": "1",
            }
        )

    def reads(self) -> tuple[Path, ...]:
        """Python with its packages, and the script that compiles."""
        prefixes = {Path(sys.prefix), Path(sys.base_prefix), BUILD.resolve().parent, self.python.resolve().parent}
        prefixes |= {self.launchers} if self.launchers else set()
        system = (Path(path) for path in _SYSTEM_READS if Path(path).exists())
        return (*system, *sorted(prefixes))

    def writes(self) -> tuple[Path, ...]:
        """Nothing outside the build directory."""
        return ()

    def resources(self, folder: Path) -> dict[str, float]:
        """Most registers, shared_bytes, stack_bytes and spill_bytes of a kernel; kernels; launches of one call at most.

        As the compiling process wrote them, which holds the candidate's host code too: to look at, not to rely on.
        """
        try:
            facts = json.loads((folder / RESOURCES).read_text())
            return {str(name): float(value) for name, value in facts.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}


def _shapes(entry: Entry, dims: Mapping[str, int]) -> TensorShapes:
    return tuple((tensor.dtype, tensor.resolve(dims)) for tensor in (*entry.inputs, *entry.outputs))


@lru_cache(maxsize=1)
def find_triton() -> TritonCompiler:
    """Triton as it is installed beside this Python, for sm_90. Raises MissingToolchain."""
    try:
        installed = distribution("triton")
    except PackageNotFoundError as error:
        raise MissingToolchain(f"Triton is not installed; {NEXT_STEP}") from error
    if importlib.util.find_spec("triton") is None:
        raise MissingToolchain(f"Triton {installed.version} is listed but cannot be found; {NEXT_STEP}")
    return TritonCompiler(installed.version, _digest(installed), Path(sys.executable))


def _digest(installed: Distribution) -> str:
    """Over the wheel's own list of files and their hashes, the script that compiles, Python and the flags."""
    parts = [installed.version, installed.read_text("RECORD") or "", sys.version, *FLAGS]
    parts += [path.read_text("utf-8") for path in sorted(BUILD.parent.glob("*.py"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
