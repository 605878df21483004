"""A measuring process that ends early loses neither what it measured nor that it ended."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelbraid.ops.bench.arm import Line, lines_of


def printed(folder: Path, program: str, timeout_s: float = 20.0, words: Sequence[str] = ()) -> list[Line]:
    """What is kept of a module with this text."""
    (folder / "measuring.py").write_text(program)
    return lines_of("measuring", words, timeout_s, {"PYTHONPATH": str(folder)})


def test_lines_of_json_are_kept_and_other_words_are_not(tmp_path: Path) -> None:
    program = "import sys\nprint('warming up')\nprint('{\"word\": \"' + sys.argv[1] + '\"}')\n"
    assert printed(tmp_path, program, words=["one"]) == [{"word": "one"}]


@pytest.mark.parametrize(
    ("last_words", "timeout_s", "said"),
    [("raise SystemExit('out of memory')", 20.0, "out of memory"), ("import time; time.sleep(60)", 2.0, "after 2 s")],
)
def test_a_process_that_ends_within_a_line_keeps_the_lines_before_it(
    last_words: str, timeout_s: float, said: str, tmp_path: Path
) -> None:
    program = f"print('{{\"us\": 1}}', flush=True)\nprint('{{\"us\"', end='', flush=True)\n{last_words}\n"
    first, last = printed(tmp_path, program, timeout_s)
    assert first == {"us": 1}
    assert said in last["ended"]
