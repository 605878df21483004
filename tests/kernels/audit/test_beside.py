"""Work beside other work: done in turn, waited for, and its failure comes first."""

import sys
import threading
from collections.abc import Callable

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from kernelbraid.kernels.audit.beside import SWITCH_S, Beside
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.outcome import Correctness


def failing(verdict: Correctness) -> None:
    raise CandidateFailed(verdict, "as it should")


def with_a_failing_work(body: Callable[[Beside], None]) -> None:
    with Beside() as beside:
        beside.start(lambda: failing(Correctness.INACCURATE))
        body(beside)


def interrupted(beside: Beside) -> None:
    raise KeyboardInterrupt


def test_works_are_done_in_turn_beside_the_body_which_ends_after_them() -> None:
    done: list[int] = []
    begun = threading.Event()
    with Beside() as beside:
        beside.start(lambda: (begun.wait(5), done.append(1))[1])
        beside.start(lambda: done.append(2))
        assert done == []
        begun.set()
    assert done == [1, 2]
    assert not beside.failed


def test_the_failure_of_a_work_counts_before_the_bodys() -> None:
    with pytest.raises(CandidateFailed) as caught:
        with_a_failing_work(lambda _: failing(Correctness.HUNG))
    assert caught.value.verdict is Correctness.INACCURATE


def test_a_body_that_looks_ends_at_the_failure_of_a_work() -> None:
    reached: list[str] = []

    def body(beside: Beside) -> None:
        with pytest.raises(CandidateFailed):
            beside.wait()
        assert beside.failed
        reached.append("waited")
        beside.look()
        reached.append("looked")

    with pytest.raises(CandidateFailed):
        with_a_failing_work(body)
    assert reached == ["waited"]


def test_an_interruption_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        with_a_failing_work(interrupted)


def test_two_that_overlap_leave_the_interpreters_turns_as_they_were() -> None:
    # given one that begins while another is inside, and outlasts it
    usual_s = sys.getswitchinterval()
    first, second = Beside(), Beside()
    # when
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    still_s = sys.getswitchinterval()
    second.__exit__(None, None, None)
    # then
    assert still_s == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == pytest.approx(usual_s)


def test_matrix_products_stay_on_their_thread_while_an_audit_is_inside() -> None:
    # given
    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        usual = threads()
        # when
        with Beside() as beside:
            inside: list[set[int]] = []
            beside.start(lambda: inside.append(threads()))
        # then
        assert inside == [{1}]
        assert threads() == usual == {2}
