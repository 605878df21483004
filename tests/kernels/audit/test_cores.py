"""Which CPUs are one core."""

from pathlib import Path

import pytest

from kernelbraid.kernels.audit.cores import threads_of_core


@pytest.mark.parametrize(
    ("listed", "threads"),
    [("3\n", {3}), ("1,3\n", {1, 3}), ("2-3\n", {2, 3}), ("0-1,3,8-9\n", {0, 1, 3, 8, 9})],
)
def test_the_threads_of_a_core_are_read_as_the_system_lists_them(
    listed: str, threads: set[int], tmp_path: Path
) -> None:
    # given
    folder = tmp_path / "cpu3" / "topology"
    folder.mkdir(parents=True)
    (folder / "thread_siblings_list").write_text(listed)
    # when / then
    assert threads_of_core(3, tmp_path) == threads


def test_a_cpu_stands_alone_where_the_system_says_nothing(tmp_path: Path) -> None:
    assert threads_of_core(5, tmp_path) == {5}
