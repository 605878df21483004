"""C compilers: gcc, else clang, else the `ziglang` wheel; one set of flags for every offspring.

No flag here may change what an expression rounds to: contraction and reassociation stay off, so that a source
alone decides its bits. -fno-math-errno and -fno-trapping-math touch errno and exception flags, never a value.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kernelbraid.kernels.toolchains import elf
from kernelbraid.kernels.toolchains.toolchain import Command, MissingToolchain

ARTIFACT = "kernel.so"
FLAGS = (
    "-std=c17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=default",
    "-Wall",
    "-Wl,-z,defs",
    "-Wl,-z,now",
)
STACK_USAGE = "-fstack-usage"
LIBRARIES = ("-lm",)
NEXT_STEP = "install gcc or clang (apt install gcc), or: pip install 'kernelbraid[compiler]' for the ziglang wheel"
_SYSTEM_READS = (
    "/usr/include",
    "/usr/local/include",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/bin",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/dev/null",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system/cpu",
)


@dataclass(frozen=True)
class CCompiler:
    """One C compiler. `prefix` starts its command line, an absolute path first."""

    name: str
    prefix: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    digest: str
    home: Path = field(default=Path("/usr"))
    """The compiler's own folder: all of it may be read when it is not /usr."""
    cache: Path | None = None
    """zig keeps its C runtime here."""

    def command(self, sources: tuple[str, ...], flags: tuple[str, ...]) -> Command:
        """Compile every .c file of the sources, in the order of their names, into one shared object."""
        units = sorted(name for name in sources if name.endswith(".c"))
        arguments = (*self.prefix, *self.flags, *flags, "-o", ARTIFACT, *units, *LIBRARIES)
        return Command(arguments, ARTIFACT)

    def reads(self) -> tuple[Path, ...]:
        """System headers and libraries, and the compiler itself."""
        own = () if self.home == Path("/usr") else (self.home,)
        return (*(Path(path) for path in _SYSTEM_READS if Path(path).exists()), *own)

    def writes(self) -> tuple[Path, ...]:
        """zig's cache; nothing for gcc and clang."""
        return () if self.cache is None else (self.cache,)

    def environment(self, folder: Path) -> dict[str, str]:
        """Environment of a compilation in `folder`: nothing of the caller's."""
        path = os.pathsep.join(dict.fromkeys([str(Path(self.prefix[0]).parent), "/usr/bin", "/bin"]))
        own = {"PATH": path, "LC_ALL": "C", "HOME": str(folder), "TMPDIR": str(folder)}
        if self.cache is not None:
            own |= {"ZIG_GLOBAL_CACHE_DIR": str(self.cache), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
        return own

    def resources(self, folder: Path) -> dict[str, float]:
        """text_bytes and rodata_bytes from the ELF sections; stack_bytes, the largest frame, where it is known."""
        sections = elf.section_bytes((folder / ARTIFACT).read_bytes())
        facts = {f"{name[1:]}_bytes": float(sections[name]) for name in (".text", ".rodata") if name in sections}
        frames = [int(line.split("\t")[1]) for path in folder.glob("*.su") for line in path.read_text().splitlines()]
        return facts | ({"stack_bytes": float(max(frames))} if frames else {})


@lru_cache(maxsize=1)
def find_compiler() -> CCompiler:
    """The first compiler that builds a shared object here.

    Raises MissingToolchain, naming what was tried and what to install.
    """
    tried: list[str] = []
    for name, prefix, home, cache in _candidates():
        try:
            return _probe(name, prefix, home, cache)
        except (OSError, subprocess.SubprocessError) as error:
            tried.append(f"{name} ({error})")
    raise MissingToolchain(f"no C compiler works here (tried: {'; '.join(tried) or 'none found'}); {NEXT_STEP}")


def _candidates() -> list[tuple[str, tuple[str, ...], Path, Path | None]]:
    found: list[tuple[str, tuple[str, ...], Path, Path | None]] = []
    for name in ("gcc", "clang"):
        if path := shutil.which(name):
            found.append((name, (path,), _home(Path(path)), None))
    if (spec := importlib.util.find_spec("ziglang")) is not None and spec.origin is not None:
        home = Path(spec.origin).parent
        found.append(("zig", (str(home / "zig"), "cc"), home, _cache_folder() / "zig"))
    return found


def _home(path: Path) -> Path:
    home = path.resolve().parent.parent
    return Path("/usr") if home in (Path("/usr"), Path("/")) else home


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelbraid"


def _probe(name: str, prefix: tuple[str, ...], home: Path, cache: Path | None) -> CCompiler:
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    said = subprocess.run([*prefix, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    version = said.strip().splitlines()[0] if said.strip() else "unknown"
    plain = CCompiler(name, prefix, version, FLAGS, "", home, cache)
    flags = FLAGS if _refusal(plain, (STACK_USAGE,)) else (*FLAGS, STACK_USAGE)
    if flags == FLAGS and (refusal := _refusal(plain, ())):
        raise subprocess.SubprocessError(refusal)
    return CCompiler(name, prefix, version, flags, _digest(name, version, prefix, flags), home, cache)


def _refusal(compiler: CCompiler, flags: tuple[str, ...]) -> str:
    """Why a one-line source does not compile; empty when it does."""
    with tempfile.TemporaryDirectory(prefix="kernelbraid-cc-") as name:
        folder = Path(name)
        (folder / "probe.c").write_text("#include <math.h>\nfloat probe(float x) { return sqrtf(x); }\n")
        arguments = compiler.command(("probe.c",), flags).arguments
        done = subprocess.run(
            arguments, cwd=folder, env=compiler.environment(folder), capture_output=True, text=True, timeout=120
        )
        built = (folder / ARTIFACT).is_file()
    return "" if done.returncode == 0 and built else done.stderr.strip()[-400:] or f"exit {done.returncode}"


def _digest(name: str, version: str, prefix: tuple[str, ...], flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    with Path(prefix[0]).resolve().open("rb") as binary:
        digest.update(hashlib.file_digest(binary, "sha256").digest())
    digest.update("\0".join([name, version, *flags, *LIBRARIES]).encode())
    return digest.hexdigest()
