"""What this machine has, what it lacks, and how to get it."""

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.store import DEFAULT_URL, STORE_VARIABLE, open_store
from kernelbraid.kernels.audit.environment import cpu_model, l1_bytes
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.sandbox import SandboxKind
from kernelbraid.kernels.operators.operator import load_operator
from kernelbraid.kernels.toolchains.cc import find_compiler
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain
from kernelbraid.ops.report.figures import size

OLDEST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 200_000_000
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION_FLAG = 1
_PROCESS_FILES = Path("/proc/self/fd")
_SECCOMP_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")

EXTRAS = (
    ("ziglang", "compiler", "a C compiler as a wheel, where gcc and clang are missing"),
    ("torch", "torch", "kernels on tensors, and the RL integrations"),
    ("triton", "gpu", "Triton kernels; needs an NVIDIA GPU"),
    ("flash_attn", "flash-attn", "FlashAttention 2 as a baseline; needs an NVIDIA GPU and a source build"),
    ("starlette", "console", "the console"),
    ("psycopg", "postgres", "stores on PostgreSQL"),
    ("mcp", "mcp", "coding agents that hand work in"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `required`: the default search does not run without it."""

    name: str
    present: bool
    required: bool
    found: str
    advice: str = ""


def examine(url: str | None) -> Iterator[Finding]:
    """Every finding, the required ones first."""
    yield _python()
    yield from _compiling()
    yield _store(url)
    yield from _boxes()
    yield _cores()
    yield from _simd()
    yield from (_extra(*extra) for extra in EXTRAS)


def fit(findings: list[Finding]) -> bool:
    """Whether the default search can run here."""
    return all(finding.present for finding in findings if finding.required)


def _python() -> Finding:
    fine = sys.version_info >= OLDEST_PYTHON
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding("python", fine, True, platform.python_version(), "" if fine else f"install Python {oldest} or newer")


def _compiling() -> Iterator[Finding]:
    """The compiler by name, then whether what it builds runs here, and in which box."""
    advice = 'install gcc or clang with your system\'s package manager, or: pip install "kernelbraid[compiler]"'
    try:
        compiler = find_compiler()
    except MissingToolchain as error:
        yield Finding("compiler", False, True, str(error), advice)
        return
    yield Finding("compiler", True, True, f"{compiler.name} ({compiler.version})")
    yield from _auditing(advice)


def _auditing(advice: str) -> Iterator[Finding]:
    try:
        with Harness(load_operator("rms_norm")) as harness:
            sandbox = harness.environment().sandbox
    except (MissingToolchain, OSError) as error:
        mounted = _PROCESS_FILES.is_dir()
        yield Finding(
            "build and run",
            False,
            True,
            str(error),
            advice if mounted else "mount /proc: kernels are loaded through it",
        )
        return
    yield Finding("build and run", True, True, "an empty kernel was built, loaded and called")
    boxed = sandbox != SandboxKind.NONE
    without = "only the package's own catalogue may be searched, with a warning: install bubblewrap (bwrap)"
    yield Finding("sandbox in use", boxed, False, sandbox, "" if boxed else without)


def _store(url: str | None) -> Finding:
    url = url or os.environ.get(STORE_VARIABLE) or DEFAULT_URL
    advice = "choose another with --store sqlite:///PATH or $KERNELBRAID_STORE"
    path = Path(url.removeprefix("sqlite:///")).absolute()
    if path.exists():
        return _existing_store(url, path, advice)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        return Finding("store", False, True, f"{path} cannot be made: {path.parent} cannot be written", advice)
    free = shutil.disk_usage(path.parent).free
    roomy = free >= LEAST_FREE_BYTES
    return Finding("store", roomy, True, f"{path} can be made, {size(free)} free", "" if roomy else "make room")


def _existing_store(url: str, path: Path, advice: str) -> Finding:
    try:
        store = open_store(url)
        campaigns = len(store.campaigns())
        store.close()
    except KernelbraidError as error:
        return Finding("store", False, True, str(error), advice)
    free = shutil.disk_usage(path.parent).free
    return Finding("store", True, True, f"{path}, {campaigns} campaigns, {size(free)} free")


def _boxes() -> Iterator[Finding]:
    program = shutil.which("bwrap")
    yield Finding(
        "bubblewrap", program is not None, False, program or "not found", "" if program else "optional: install bwrap"
    )
    version = landlock_abi()
    yield Finding(
        "landlock",
        version > 0,
        False,
        f"ABI {version}" if version > 0 else "not offered by this kernel",
        "" if version > 0 else "optional: Linux 5.13 or newer with landlock enabled",
    )
    actions = _seccomp_actions()
    yield Finding("seccomp", "errno" in actions, False, actions or "not offered by this kernel")


def landlock_abi() -> int:
    """The version of landlock's interface that the kernel offers; 0 where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version: int = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION_FLAG)
    return max(0, version)


def _seccomp_actions() -> str:
    try:
        return _SECCOMP_ACTIONS.read_text().strip()
    except OSError:
        return ""


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0))
    advice = "" if usable > 1 else "one core builds, checks and times: expect a longer search"
    return Finding("cores", True, False, f"{usable} usable ({cpu_model()})", advice)


def _simd() -> Iterator[Finding]:
    """What the compiler builds for; nothing where there is none, which is said already."""
    with suppress(MissingToolchain):
        bits = find_compiler().simd_bits
        advice = "" if bits >= 256 else "the catalogue gains less with vectors this narrow"
        yield Finding("SIMD", True, False, f"{bits} bits, {size(l1_bytes())} first-level cache", advice)


def _extra(module: str, extra: str, what_for: str) -> Finding:
    present = find_spec(module) is not None
    found = _version(module) if present else f"not installed: {what_for}"
    return Finding(module, present, False, found, "" if present else f'pip install "kernelbraid[{extra}]"')


def _version(module: str) -> str:
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return "installed"
