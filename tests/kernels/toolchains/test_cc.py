"""The C toolchain: found in order, fixed flags, a clear word when nothing is there."""

import ctypes
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelbraid.kernels.toolchains import cc, elf
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain, Toolchain


@pytest.fixture
def compiler() -> cc.CCompiler:
    return cc.find_compiler()


def build(compiler: cc.CCompiler, folder: Path, **sources: str) -> Path:
    for name, text in sources.items():
        (folder / f"{name}.c").write_text(text)
    command = compiler.command(tuple(f"{name}.c" for name in sources), ())
    subprocess.run(command.arguments, cwd=folder, env=compiler.environment(folder), check=True, timeout=120)
    return folder / command.artifact


def test_a_compiler_is_a_toolchain_with_a_stable_digest(compiler: cc.CCompiler) -> None:
    toolchain: Toolchain = compiler
    cc.find_compiler.cache_clear()
    assert toolchain.digest == cc.find_compiler().digest
    assert len(toolchain.digest) == 64
    assert toolchain.version


def test_no_flag_lets_the_compiler_round_otherwise(compiler: cc.CCompiler, tmp_path: Path) -> None:
    """x * y + z with contraction would keep the product's low bits; reassociation would drop the small addend."""
    source = """
        float product(float x, float y, float z) { return x * y + z; }
        float sum(float large, float small) { return (large + small) - large; }
    """
    library = ctypes.CDLL(str(build(compiler, tmp_path, rounding=source)))
    for name in ("product", "sum"):
        getattr(library, name).restype = ctypes.c_float
    x = ctypes.c_float(1 + 2**-12)
    assert library.product(x, x, ctypes.c_float(-(1 + 2**-11))) == 0.0
    assert library.sum(ctypes.c_float(2.0**24), ctypes.c_float(0.5)) == 0.0


def test_all_c_files_are_compiled_and_headers_are_not(compiler: cc.CCompiler) -> None:
    arguments = compiler.command(("b.c", "a.c", "shared.h", "notes.md"), ("-DX",)).arguments
    assert [argument for argument in arguments if argument.endswith((".c", ".h", ".md"))] == ["a.c", "b.c"]
    assert arguments.index("-DX") > arguments.index("-O3")


def test_resources_come_from_the_artifact(compiler: cc.CCompiler, tmp_path: Path) -> None:
    source = "static const int table[256] = {1}; int look(int i) { volatile int a[256]; a[i] = i; return table[a[i]]; }"
    build(compiler, tmp_path, table=source)
    facts = compiler.resources(tmp_path)
    assert facts["text_bytes"] > 0
    assert facts["rodata_bytes"] >= 1024
    if cc.STACK_USAGE in compiler.flags:
        assert facts["stack_bytes"] >= 256


def test_a_machine_without_compiler_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cc.VARIABLE, raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(cc.importlib.util, "find_spec", lambda name: None)
    cc.find_compiler.cache_clear()
    try:
        with pytest.raises(MissingToolchain, match=r"install gcc or clang .*kernelbraid\[compiler\]"):
            cc.find_compiler()
    finally:
        cc.find_compiler.cache_clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], cc.CCompiler]]:
    """The compiler found when `CC` holds these words."""

    def found(words: str) -> cc.CCompiler:
        monkeypatch.setenv(cc.VARIABLE, words)
        cc.find_compiler.cache_clear()
        return cc.find_compiler()

    yield found
    cc.find_compiler.cache_clear()


def test_the_user_names_compiler_and_flags_and_ours_come_after(
    compiler: cc.CCompiler, asked: Callable[[str], cc.CCompiler]
) -> None:
    chosen = asked(shlex.join([*compiler.prefix, "-ffast-math", "-DMINE"]))
    assert chosen.prefix == compiler.prefix
    assert chosen.flags.index("-DMINE") < chosen.flags.index("-fno-fast-math")
    assert chosen.digest != compiler.digest


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flag is an x86 compiler's")
def test_the_width_of_vectors_is_what_the_compiler_builds_for(
    compiler: cc.CCompiler, asked: Callable[[str], cc.CCompiler]
) -> None:
    narrow = asked(shlex.join([*compiler.prefix, "-mno-avx"]))
    assert narrow.simd_bits == 128 <= compiler.simd_bits


@pytest.mark.parametrize("words", ["no-such-compiler -O1", "false", "'unclosed"])
def test_a_compiler_asked_for_that_does_not_work_is_not_replaced(
    words: str, asked: Callable[[str], cc.CCompiler]
) -> None:
    with pytest.raises(MissingToolchain, match=r"CC=.* does not work here: .*mend or unset it"):
        asked(words)


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100, b"MZ" * 60])
def test_bytes_that_are_no_elf_file_have_no_sections(image: bytes) -> None:
    assert elf.section_bytes(image) == {}
