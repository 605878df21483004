"""Mechanisms: when they fit, how they are applied in turn, and what the catalogue's digest covers."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.kernels.operators.catalogue import Mechanism, apply, catalogue_digest, load_catalogue
from kernelbraid.kernels.operators.operator import Sources, load_operator
from kernelbraid.kernels.operators.regions import Refused, edit_region

SOURCES = {"k.c": "// region body\nint a;\n// endregion body\n"}


def mechanism(name: str, old: str = "int a;", new: str = "int b;", **fields: tuple[str, ...]) -> Mechanism:
    """A mechanism that replaces one text in the region body."""

    def edit(sources: Sources) -> Sources:
        return edit_region(sources, "body", old, new)

    return Mechanism(name, "joint", "", "", "", "", 1.0, edit, lambda facts: None, **fields)


@pytest.mark.parametrize(
    ("applied", "fits"),
    [
        ((), False),
        (("a",), False),
        (("a", "c"), True),
        (("b", "c"), True),
        (("a", "b", "c", "other"), True),
        (("a", "c", "never"), False),
        (("a", "c", "it"), False),
    ],
)
def test_it_fits_when_each_requirement_has_one_of_its_names_and_nothing_excludes_it(
    applied: tuple[str, ...], fits: bool
) -> None:
    it = mechanism("it", requires=("a|b", "c"), excludes=("never",))
    assert it.fits(applied) is fits


def test_mechanisms_are_applied_in_turn() -> None:
    both = apply([mechanism("first"), mechanism("second", "int b;", "int c;")], SOURCES)
    assert both == {"k.c": "// region body\nint c;\n// endregion body\n"}


def test_applying_leaves_the_parent_as_it_was() -> None:
    before = dict(SOURCES)
    apply([mechanism("first")], SOURCES)
    assert before == SOURCES


def test_the_one_that_does_not_fit_is_named() -> None:
    with pytest.raises(Refused, match="second: region body: expected one 'int z;', found 0"):
        apply([mechanism("first"), mechanism("second", "int z;", "int c;")], SOURCES)


def test_one_that_changes_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="idle: it changed nothing"):
        apply([mechanism("idle", new="int a;")], SOURCES)


def test_the_digest_covers_every_python_file_of_the_target(tmp_path: Path) -> None:
    # given an operator whose catalogue stands in two files
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "catalogue.py").write_text("CATALOGUE = ()\n")
    (tmp_path / "cpu" / "loops.py").write_text("TILE = 4\n")
    operator = replace(load_operator("linear"), folder=tmp_path)
    before = catalogue_digest(operator, "cpu")

    # when / then a change to either, or a new name, changes the digest
    (tmp_path / "cpu" / "loops.py").write_text("TILE = 8\n")
    edited = catalogue_digest(operator, "cpu")
    (tmp_path / "cpu" / "loops.py").rename(tmp_path / "cpu" / "tiles.py")
    assert len({before, edited, catalogue_digest(operator, "cpu")}) == 3


def test_a_catalogue_keeps_its_order_and_names_are_its_own() -> None:
    for name in ("linear", "rms_norm"):
        names = [each.name for each in load_catalogue(load_operator(name), "cpu")]
        assert len(names) == len(set(names)) >= 8
