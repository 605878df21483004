"""Which implementation is taken, what is said of it, and that nothing of it is loaded before it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernelbraid.kernels.operators.operator import OperatorError, load_operator
from kernelbraid.kernels.runtime import loading, ran, reset_ran
from kernelbraid.kernels.runtime.loading import Ran, count, digest

ROOT, BEST = "def scale(x, y):\n    y.append(x)\n", "def scale(x, y):\n    y.append(2 * x)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator with a root, in a place of its own."""
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(loading, "HERE", tmp_path)
    loading.implementation.cache_clear()
    loading.entry.cache_clear()
    reset_ran()
    root = tmp_path / "scale" / "triton" / "root"
    root.mkdir(parents=True)
    (root / "kernel.py").write_text(ROOT)
    return root.parent


def called(value: int) -> int:
    out: list[int] = []
    loading.entry("scale", "scale")(value, out)
    return out[0]


def test_the_root_runs_where_nothing_better_was_found(folder: Path) -> None:
    assert called(3) == 3
    assert ran() == (Ran("scale", "scale", "triton", "root", digest({"kernel.py": ROOT}), 1),)


def test_the_best_is_preferred_and_says_its_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(loading, "_architecture", lambda: "sm_90")
    (folder / "best").mkdir()
    (folder / "best" / "kernel.py").write_text(BEST)

    # when
    results = [called(3), called(4)]

    # then
    assert results == [6, 8]
    assert ran() == (Ran("scale", "scale", "triton", "best", digest({"kernel.py": BEST}), 2),)


@pytest.mark.parametrize(
    ("first_line", "kind"),
    [("", "root"), ('ARCHITECTURES = ("sm_90",)\n', "root"), ('ARCHITECTURES = ("sm_80",)\n', "best")],
)
def test_a_best_from_another_architecture_is_left_out_unless_it_names_this_one(
    first_line: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(loading, "_architecture", lambda: "sm_80")
    (folder / "best").mkdir()
    (folder / "best" / "kernel.py").write_text(first_line + BEST)

    # when
    called(3)

    # then
    assert [each.kind for each in ran()] == [kind]


def test_a_missing_operator_or_entry_is_an_error_and_nothing_else_runs(folder: Path) -> None:
    with pytest.raises(OperatorError, match="no implementation for triton"):
        loading.implementation("shift")
    with pytest.raises(OperatorError, match="no function shift"):
        loading.entry("scale", "shift")
    assert ran() == ()


def test_counts_begin_again_when_asked() -> None:
    # given
    reset_ran()
    count(Ran("scale", "scale", "triton", "root", ""))

    # when
    reset_ran()

    # then
    assert ran() == ()


def test_every_entry_that_is_registered_is_in_its_root() -> None:
    for name in ("attention", "rms_norm", "rope_store", "silu_and_mul", "moe_linear", "log_softmax_gather"):
        operator = load_operator(name, "triton")
        (source,) = operator.root_sources().values()
        assert all(f"def {entry.symbol}(" in source for entry in operator.entries)


def test_importing_the_package_imports_no_torch() -> None:
    # when
    code = "import sys, kernelbraid, kernelbraid.kernels, kernelbraid.kernels.runtime; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    # then
    assert said.stdout == "False\n"
