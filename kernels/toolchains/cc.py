"""C compilers: what `CC` names, else gcc, clang or the `ziglang` wheel; one set of flags for every offspring.

No flag here may change what an expression rounds to: contraction and reassociation stay off, so that a source
alone decides its bits. -fno-math-errno and -fno-trapping-math touch errno and exception flags, never a value, and
-fno-strict-aliasing leaves less to luck: gcc then also knows more functions for equal, and compiles one of them.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
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
    "-fno-strict-aliasing",
    "-fvisibility=default",
    "-Wall",
    "-Wl,-z,defs",
    "-Wl,-z,now",
)
STACK_USAGE = "-fstack-usage"
SCALAR_REMAINDERS = "--param=vect-epilogues-nomask=0"
"""What is left of a vectorised loop stays scalar: gcc would vectorise it again with narrower vectors, for a tenth to a
quarter of its time, and sizes that are timed are multiples of any vector."""
PARALLEL = ("-flto=2", "-flto-partition=max")
"""gcc compiles every function in a process of its own, two at a time. The rounding flags are kept by function."""
WHOLE_VECTORS = "-mprefer-vector-width=512"
"""clang splits the 512-bit vectors of a source in halves on most processors, gcc takes them as they are written."""
LIBRARIES = ("-lm",)
VARIABLE = "CC"
"""Names the compiler to use and flags of the user's own, such as `clang` or `gcc -mno-avx512f`; ours come after."""
NEXT_STEP = "install gcc or clang (apt install gcc), or: pip install 'kernelbraid[compiler]' for the ziglang wheel"
# The widest first: what a compiler announces in its own macros under our flags.
_SIMD_BITS = {"__AVX512F__": 512, "__AVX2__": 256}
_NARROWEST_SIMD_BITS = 128
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
    simd_bits: int = _NARROWEST_SIMD_BITS
    """Widest vector register that it builds for under its flags, which need not be the processor's widest."""
    large_flags: tuple[str, ...] = ()
    """More flags for large sources, which build sooner with them."""

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
    """The compiler that `CC` names, else the first one that builds a shared object here.

    Raises MissingToolchain, naming what was tried and what to install.
    """
    if asked := os.environ.get(VARIABLE, "").strip():
        return _asked_for(asked)
    tried: list[str] = []
    for compiler in _candidates():
        try:
            return _probe(compiler)
        except (OSError, subprocess.SubprocessError) as error:
            tried.append(f"{compiler.name} ({error})")
    raise MissingToolchain(f"no C compiler works here (tried: {'; '.join(tried) or 'none found'}); {NEXT_STEP}")


def _asked_for(asked: str) -> CCompiler:
    """What `CC` names, or a refusal: another compiler than the one asked for would be a surprise."""
    try:
        first, *words = shlex.split(asked)
        path = shutil.which(first)
        if path is None:
            raise FileNotFoundError("it is not found")
        flags = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
        own = tuple(words[flags:])
        return _probe(_plain(Path(first).name, (path, *words[:flags]), _home(Path(path)), own=own))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise MissingToolchain(f"{VARIABLE}={asked!r} does not work here: {error}; mend or unset it") from error


def _candidates() -> list[CCompiler]:
    found = [_plain(name, (path,), _home(Path(path))) for name in ("gcc", "clang") if (path := shutil.which(name))]
    if (spec := importlib.util.find_spec("ziglang")) is not None and spec.origin is not None:
        home = Path(spec.origin).parent
        found.append(_plain("zig", (str(home / "zig"), "cc"), home, _cache_folder() / "zig"))
    return found


def _plain(
    name: str, prefix: tuple[str, ...], home: Path, cache: Path | None = None, own: tuple[str, ...] = ()
) -> CCompiler:
    """A compiler nothing was asked of yet; `own` are the user's flags."""
    return CCompiler(name, prefix, "unknown", (*own, *FLAGS), "", home, cache)


def _home(path: Path) -> Path:
    home = path.resolve().parent.parent
    return Path("/usr") if home in (Path("/usr"), Path("/")) else home


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelbraid"


def _probe(plain: CCompiler) -> CCompiler:
    """The compiler with all that it says of itself. Raises OSError or SubprocessError when it builds nothing."""
    if plain.cache is not None:
        plain.cache.mkdir(parents=True, exist_ok=True)
    said = _told(plain, ("--version",))
    version = said.strip().splitlines()[0] if said.strip() else plain.version
    macros = _macros(plain)
    flags = (*plain.flags, *_accepted(plain, (STACK_USAGE, WHOLE_VECTORS if _splits(macros) else SCALAR_REMAINDERS)))
    large = PARALLEL if "__clang__" not in macros and _accepted(plain, PARALLEL) == PARALLEL else ()
    digest = _digest(plain.name, version, plain.prefix, (*flags, *large))
    return replace(plain, version=version, flags=flags, digest=digest, simd_bits=_simd_bits(macros), large_flags=large)


def _accepted(compiler: CCompiler, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the flags that it builds with. Raises SubprocessError when it builds nothing even without them."""
    if not _refusal(compiler, wanted):
        return wanted
    if refusal := _refusal(compiler, ()):
        raise subprocess.SubprocessError(refusal)
    return tuple(flag for flag in wanted if not _refusal(compiler, (flag,)))


def _splits(macros: set[str]) -> bool:
    return macros >= {"__clang__", "__AVX512F__"}


def _simd_bits(macros: set[str]) -> int:
    return max((bits for macro, bits in _SIMD_BITS.items() if macro in macros), default=_NARROWEST_SIMD_BITS)


def _macros(compiler: CCompiler) -> set[str]:
    """What it defines by itself under its flags."""
    return set(re.findall(r"#define (\w+)", _told(compiler, (*compiler.flags, "-dM", "-E", "-x", "c", os.devnull))))


def _told(compiler: CCompiler, arguments: tuple[str, ...]) -> str:
    command = [*compiler.prefix, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


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
