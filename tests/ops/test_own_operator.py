"""Operators of a user's own with something wrong in their folder: file and next step are named, the log is intact."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from kernelbraid.kernels.operators.cases import Call, load_module, load_reference
from kernelbraid.kernels.operators.operator import OperatorError, load_operator
from tests.ops.conftest import call

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_operator" / "swiglu"
CATALOGUE = "cpu/catalogue.py"
REPLACED = """
import dataclasses
def broken(given):
    raise ZeroDivisionError("boom")
CATALOGUE = tuple(dataclasses.replace(item, {role}=broken) for item in CATALOGUE)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A copy of the example's operator."""
    copy = tmp_path / "swiglu"
    shutil.copytree(EXAMPLE, copy)
    load_module.cache_clear()
    yield copy
    load_module.cache_clear()


def searched(folder: Path) -> Result:
    return call(folder.parent / "s.db", "run", str(folder), "--audits", "2")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("def (", "SyntaxError: invalid syntax (line"),
        ("import no_such_module", "no_such_module"),
        ("raise SystemExit(0)", "SystemExit"),
        ("CATALOGUE = 7", "must define CATALOGUE"),
        ("CATALOGUE = (1, 2)", "must define CATALOGUE"),
    ],
)
def test_a_catalogue_that_cannot_be_loaded_is_named(folder: Path, more: str, word: str) -> None:
    with open(folder / CATALOGUE, "a") as file:
        file.write(more)

    result = searched(folder)

    assert result.exit_code == 1
    assert str(folder / CATALOGUE) in result.stderr
    assert word in result.stderr


@pytest.mark.parametrize("role", ["evidence", "edit"])
def test_a_mechanism_that_fails_is_named_and_the_campaign_goes_on_when_it_is_mended(folder: Path, role: str) -> None:
    whole = (folder / CATALOGUE).read_text()
    (folder / CATALOGUE).write_text(whole + REPLACED.format(role=role))

    failed = searched(folder)
    (folder / CATALOGUE).write_text(whole)
    load_module.cache_clear()
    resumed = call(folder.parent / "s.db", "resume", "swiglu-1")

    assert failed.exit_code == 1
    assert f"{role} of the mechanism polynomial_exp failed: ZeroDivisionError: boom" in failed.stderr
    assert resumed.exit_code == 0
    assert call(folder.parent / "s.db", "verify", "swiglu-1").exit_code == 0


def test_a_reference_that_lacks_a_function_is_named(folder: Path) -> None:
    (folder / "reference.py").write_text("make_inputs = reference = print")

    with pytest.raises(OperatorError, match=r"reference\.py does not define agreements"):
        load_reference(load_operator(str(folder)))


def test_a_folder_that_is_not_there_is_told_with_the_place_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="counts from"):
        load_operator("no/such/folder")


@pytest.mark.parametrize("function", ["make_inputs", "reference", "agreements"])
def test_a_reference_that_fails_is_named(folder: Path, function: str) -> None:
    with open(folder / "reference.py", "a") as file:
        file.write(f"\ndef {function}(*given):\n    raise ZeroDivisionError('boom')\n")
    operator = load_operator(str(folder))
    entry = operator.entries[0]
    rng, reference = np.random.default_rng(0), load_reference(operator)
    calls: dict[str, Callable[[], object]] = {
        "make_inputs": lambda: reference.make_inputs(entry, {}, rng, "normal"),
        "reference": lambda: reference.reference(entry, {}, {}),
        "agreements": lambda: list(reference.agreements(Call(entry, {}, {}), entry)),
    }

    with pytest.raises(OperatorError, match=rf"reference\.py: {function} failed: ZeroDivisionError: boom"):
        calls[function]()


@pytest.fixture
def begun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of a campaign that was begun from the operator's own folder, under the name typed there."""
    monkeypatch.chdir(folder.parent)
    assert call(folder.parent / "s.db", "run", folder.name, "--audits", "2").exit_code == 0
    assert call(folder.parent / "s.db", "fork", "swiglu-1", "--name", "child").exit_code == 0
    monkeypatch.chdir("/")
    return folder.parent / "s.db"


GOES_ON = (("resume", "child"), ("replay", "swiglu-1", "--strict"), ("fork", "swiglu-1", "--here"))


@pytest.mark.parametrize("command", GOES_ON, ids=lambda words: words[0])
def test_a_folder_typed_from_where_it_lies_is_found_from_anywhere(begun: Path, command: tuple[str, ...]) -> None:
    assert call(begun, *command).exit_code == 0


@pytest.mark.parametrize("command", GOES_ON, ids=lambda words: words[0])
def test_an_operator_that_moved_is_asked_for_and_taken_where_it_is(
    folder: Path, begun: Path, command: tuple[str, ...]
) -> None:
    moved = folder.rename(folder.parent / "elsewhere")

    lost = call(begun, *command)
    found = call(begun, *command, "--operator", str(moved))

    assert lost.exit_code == 3
    assert f"no longer at {folder}" in lost.stderr
    assert "--operator" in lost.stderr
    assert found.exit_code == 0


def test_a_campaign_is_not_resumed_under_another_declaration(folder: Path, begun: Path) -> None:
    declaration = folder / "operator.toml"
    declaration.write_text(declaration.read_text() + "\n# Another tolerance, say.\n")

    refused = call(begun, "resume", "child")

    assert refused.exit_code == 1
    assert str(declaration) in refused.stderr
    assert "fork --here" in refused.stderr
