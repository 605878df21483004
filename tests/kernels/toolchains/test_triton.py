"""The Triton toolchain: what it compiles without a GPU, what it records, and what it refuses."""

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.cuda.sources import unpacked
from kernelbraid.kernels.operators.operator import Entry, Tensor
from kernelbraid.kernels.toolchains import triton
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain, Toolchain
from kernelbraid.kernels.toolchains.triton import TritonCompiler, find_triton

DOUBLE = """\
import torch
import triton
import triton.language as tl


@triton.jit
def _double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def double(x, y):
    kept = torch.empty_like(y)
    _double[(triton.cdiv(x.numel(), 256),)](x, kept, x.numel(), BLOCK=256)
    _double[(triton.cdiv(x.numel(), 256),)](kept, y, x.numel(), BLOCK=256)
"""
X, Y = (Tensor(name, "float32", ("n",)) for name in "xy")
ENTRY = Entry("double", "full", "float32", ("n",), (X,), (Y,))


@pytest.fixture(scope="module")
def compiler() -> TritonCompiler:
    try:
        return find_triton()
    except MissingToolchain as error:
        pytest.skip(str(error))


def build(compiler: TritonCompiler, folder: Path, source: str, *sizes: int) -> "subprocess.CompletedProcess[str]":
    """Compile the source for tensors of these sizes, as the harness's builder does."""
    folder.mkdir(exist_ok=True)
    (folder / "kernel.py").write_text(source)
    command = compiler.for_calls([(ENTRY, {"n": size}) for size in sizes]).command(("kernel.py",))
    return subprocess.run(
        command.arguments, cwd=folder, env=compiler.environment(folder), capture_output=True, text=True, timeout=120
    )


def test_every_kernel_is_compiled_and_what_it_takes_is_recorded(compiler: TritonCompiler, tmp_path: Path) -> None:
    # when sizes fall into two of Triton's classes: multiples of 16, and others
    done = build(compiler, tmp_path, DOUBLE, 1000, 1024, 4096)

    # then
    assert done.returncode == 0, done.stdout
    facts = compiler.resources(tmp_path)
    assert (facts["kernels"], facts["launches"], facts["spill_bytes"]) == (2, 2, 0)
    assert 0 < facts["registers"] <= 64
    with zipfile.ZipFile(tmp_path / "kernel.zip") as artifact:
        manifest = json.loads(artifact.read("manifest.json"))
        assert artifact.read("sources/kernel.py").decode() == DOUBLE
        assert sum(name.endswith(".cubin") for name in artifact.namelist()) == 2
    assert [symbol for symbol, _ in manifest["launches"]] == ["double"] * 3
    assert manifest["launches"][2][1] == [["_double", [16, 1, 1]]] * 2


def test_the_same_sources_give_the_same_artifact_wherever_they_lie(compiler: TritonCompiler, tmp_path: Path) -> None:
    for place in ("one", "two"):
        assert build(compiler, tmp_path / place, DOUBLE, 1000).returncode == 0
    assert (tmp_path / "one" / "kernel.zip").read_bytes() == (tmp_path / "two" / "kernel.zip").read_bytes()


def test_kernels_compiled_side_by_side_give_the_same_artifact_and_the_same_words(
    compiler: TritonCompiler, tmp_path: Path
) -> None:
    # given four kernels: two types of sizes, aligned and not
    source = DOUBLE.replace("BLOCK=256)\n    _d", "BLOCK=512)\n    _d", 1)

    # when
    alone = build(compiler, tmp_path / "alone", source, 1000, 1024)
    together = build(replace(compiler, workers=3), tmp_path / "together", source, 1000, 1024)

    # then
    assert (alone.returncode, together.returncode) == (0, 0), together.stdout
    images = [(tmp_path / place / "kernel.zip").read_bytes() for place in ("alone", "together")]
    assert images[0] == images[1]
    facts = [
        {name: fact for name, fact in compiler.resources(tmp_path / place).items() if name != "compile_s"}
        for place in ("alone", "together")
    ]
    assert facts[0] == facts[1]
    assert facts[0]["kernels"] == 4


def test_a_kernel_that_fails_beside_others_fails_the_build(compiler: TritonCompiler, tmp_path: Path) -> None:
    source = DOUBLE.replace("mask=at < n)\n\n", "mask=at < m)\n\n", 1)
    done = build(replace(compiler, workers=3), tmp_path, source, 1000, 1024)
    assert done.returncode == 1
    assert "m is not defined" in done.stdout.splitlines()[0]
    assert "in double(" in done.stdout.splitlines()[0]


def test_an_unpacked_artifact_is_a_cache_that_compiles_nothing_again(compiler: TritonCompiler, tmp_path: Path) -> None:
    # given
    assert build(compiler, tmp_path / "built", DOUBLE, 1000).returncode == 0
    image = (tmp_path / "built" / "kernel.zip").read_bytes()
    (tmp_path / "loaded").mkdir()
    unpacked(Artifact(image, hashlib.sha256(image).hexdigest(), {}, b"", 0.0), tmp_path / "loaded")
    before = sorted((tmp_path / "loaded").rglob("*"))

    # when the same call is made with it, and no compiler to be found
    command = compiler.for_calls([(ENTRY, {"n": 1000})]).command(())
    environment = compiler.environment(tmp_path / "loaded") | {"TRITON_PTXAS_PATH": "/nowhere"}
    subprocess.run(command.arguments, cwd=tmp_path / "loaded" / "sources", env=environment, timeout=120, check=False)

    # then it looked for nothing else: no file was added to the cache
    assert [path for path in sorted((tmp_path / "loaded" / "cache").rglob("*")) if path not in before] == []


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        pytest.param("import torch\n", "import numpy\n", "numpy|torch", id="another library"),
        pytest.param("torch.empty_like(y)", "torch.matmul(x, y)", "torch.matmul is not among", id="torch computes"),
        pytest.param("torch.empty_like(y)", "y.clone()", "'clone' is not among", id="a copy by torch"),
        pytest.param("def double(", "def other(", "KeyError: 'double'", id="no such entry"),
        pytest.param("mask=at < n)\n\n", "mask=at < m)\n\n", "m is not defined", id="a name the kernel lacks"),
        pytest.param("BLOCK=256)\n    _d", "BLOCK=250)\n    _d", "power of 2", id="no power of two"),
        pytest.param("x.numel(), BLOCK=256)\n", "x.numel(), BLOCK=256)\n    return y\n", "returned", id="a result"),
        pytest.param("def double(x, y):\n", "def double(x, y):\n    import os; os._exit(0)\n", "", id="leaves"),
    ],
)
def test_what_does_not_compile_says_so_in_one_line(
    old: str, new: str, cause: str, compiler: TritonCompiler, tmp_path: Path
) -> None:
    # given a source with one mistake
    assert old in DOUBLE
    done = build(compiler, tmp_path, DOUBLE.replace(old, new, 1), 1000)

    # then there is no artifact, and the first line names the cause and the call
    assert not (tmp_path / "kernel.zip").exists()
    if cause:
        first = done.stdout.splitlines()[0]
        assert first.startswith("error: ")
        assert any(word in first for word in cause.split("|"))


def test_more_shared_memory_than_a_block_has_is_refused(compiler: TritonCompiler, tmp_path: Path) -> None:
    # given a product with eight stages of two tiles of 32 KiB in flight
    source = """\
import triton
import triton.language as tl


@triton.jit
def _product(x, y, n):
    x = x.to(tl.pointer_type(tl.bfloat16))
    m, k = tl.arange(0, 128)[:, None], tl.arange(0, 128)[None, :]
    total = tl.zeros([128, 128], tl.float32)
    for at in range(0, n, 128):
        total = tl.dot(tl.load(x + at + m * n + k), tl.load(x + at + k * n + m), total)
    tl.store(y + m * 128 + k, total)


def double(x, y):
    _product[(1,)](x, y, x.numel(), num_stages=8)
"""
    done = build(compiler, tmp_path, source, 1024)

    # then
    assert done.returncode == 1
    assert "shared memory" in done.stdout.splitlines()[0]


def test_it_is_a_toolchain_with_a_stable_digest_that_never_loads_triton(compiler: TritonCompiler) -> None:
    toolchain: Toolchain = compiler
    find_triton.cache_clear()
    assert toolchain.digest == find_triton().digest
    assert len(toolchain.digest) == 64
    code = "import sys; from kernelbraid.kernels.toolchains.triton import find_triton; find_triton()"
    loaded = "print([name for name in ('torch', 'triton') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{code}; {loaded}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_contraction_is_off_and_said_so(compiler: TritonCompiler, tmp_path: Path) -> None:
    assert compiler.environment(tmp_path)["TRITON_DEFAULT_FP_FUSION"] == "0"
    with pytest.raises(ValueError, match=r"Triton takes no flags.*-ffast-math"):
        compiler.command(("kernel.py",), ("-ffast-math",))


def test_a_machine_without_triton_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise triton.PackageNotFoundError(name)

    monkeypatch.setattr(triton, "distribution", missing)
    find_triton.cache_clear()
    try:
        with pytest.raises(MissingToolchain, match=r"kernelbraid\[gpu\]"):
            find_triton()
    finally:
        find_triton.cache_clear()


@pytest.mark.parametrize("text", ["", "[]", '{"kernels": "many"}', "{"])
def test_resources_that_make_no_sense_are_none(text: str, compiler: TritonCompiler, tmp_path: Path) -> None:
    (tmp_path / "resources.json").write_text(text)
    assert compiler.resources(tmp_path) == {}
