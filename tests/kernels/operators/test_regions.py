"""Regions: what is found, what is refused, and that an edit changes its region and nothing else."""

import pytest

from kernelbraid.kernels.operators.regions import (
    FRAME,
    Refused,
    edit_region,
    region,
    region_digests,
    regions,
    replace_region,
)

TEXT = """\
int before;
// region first
int a;
int b;
// endregion first
int between;
    // region second
    int c;
    // endregion second
int after;
"""


def test_regions_are_found_by_name_and_the_rest_is_the_frame() -> None:
    found = regions({"k.c": TEXT})
    assert found["first"] == "int a;\nint b;\n"
    assert found["second"] == "    int c;\n"
    assert "int between;" in found[FRAME]
    assert "int a;" not in found[FRAME]


def test_a_python_source_is_marked_by_its_own_comments() -> None:
    text = "import math\n# region first\na = 1\n# endregion first\nb = 2\n"
    assert region({"k.py": text}, "first") == "a = 1\n"
    assert replace_region({"k.py": text}, "first", "a = 3\n")["k.py"] == text.replace("a = 1", "a = 3")
    with pytest.raises(Refused, match="marker"):
        regions({"k.py": text.replace("# endregion first\n", "")})


def test_the_frame_knows_its_files_names() -> None:
    assert regions({"k.c": TEXT})[FRAME] != regions({"other.c": TEXT})[FRAME]


@pytest.mark.parametrize("second", [{"k.c": TEXT + TEXT}, {"k.c": TEXT, "l.c": TEXT}])
def test_a_region_that_stands_twice_is_refused(second: dict[str, str]) -> None:
    with pytest.raises(Refused, match="first stands twice"):
        regions(second)


def test_a_region_may_not_take_the_frames_name() -> None:
    with pytest.raises(Refused, match="frame"):
        regions({"k.c": f"// region {FRAME}\n// endregion {FRAME}\n"})


def test_a_missing_region_is_refused_wherever_it_is_asked_for() -> None:
    for ask in (
        lambda: region({"k.c": TEXT}, "third"),
        lambda: replace_region({"k.c": TEXT}, "third", "int d;\n"),
        lambda: edit_region({"k.c": TEXT}, "third", "a", "d"),
    ):
        with pytest.raises(Refused, match="no region third"):
            ask()


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("// region open\nint a;\n", id="never closed"),
        pytest.param("// region one\nint a;\n// endregion other\n", id="closed by another name"),
        pytest.param("int a;\n// endregion lonely\n", id="never opened"),
        pytest.param("// region out\n// region in\nint a;\n// endregion in\n// endregion out\n", id="nested"),
    ],
)
def test_markers_that_do_not_pair_are_refused(broken: str) -> None:
    with pytest.raises(Refused, match="marker"):
        regions({"k.c": broken})


@pytest.mark.parametrize("text", ["int z;\n", "int z;", "", "// the word region\n", "int a;\nint b;\n\\g<0>\n"])
def test_replacing_changes_one_region_exactly(text: str) -> None:
    # when
    after = replace_region({"k.c": TEXT, "note": "kept"}, "first", text)

    # then
    assert region(after, "first") == (text if text.endswith("\n") or not text else text + "\n")
    assert after["note"] == "kept"
    assert {name for name, digest in region_digests(after).items() if digest != region_digests(BEFORE)[name]} <= {
        "first"
    }


BEFORE = {"k.c": TEXT, "note": "kept"}


def test_an_edit_needs_its_text_exactly_once() -> None:
    assert region(edit_region({"k.c": TEXT}, "first", "int a;", "int d;"), "first") == "int d;\nint b;\n"
    with pytest.raises(Refused, match=r"region first: expected one 'int', found 2"):
        edit_region({"k.c": TEXT}, "first", "int", "float")
    with pytest.raises(Refused, match="found 0"):
        edit_region({"k.c": TEXT}, "first", "int c;", "int d;")


def test_an_edit_of_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="nothing"):
        edit_region({"k.c": TEXT}, "first", "  \n", "int d;")


def test_text_equal_to_another_regions_is_left_alone() -> None:
    # given two regions of the same text
    twins = "// region a\nint x;\n// endregion a\n// region b\nint x;\n// endregion b\n"

    # when / then
    after = replace_region({"k.c": twins}, "b", "int y;\n")
    assert after["k.c"] == twins.replace("// region b\nint x;", "// region b\nint y;")
