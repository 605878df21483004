"""Work that goes on beside other work, in a thread of its own."""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from threadpoolctl import threadpool_limits

from kernelbraid.kernels.audit.failure import AuditFailure

SWITCH_S = 1e-4
"""Both threads do much in short steps, after each of which it is the other's turn to run Python."""


class _Settings:
    """What holds in the whole process while at least one audit is inside.

    Python's threads take short turns. numpy's matrix products stay on the thread that asks for them: BLAS's own threads
    know nothing of the cores that the auditor's are kept on, and would compute a reference where a candidate is timed.
    """

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._inside = 0
        self._before = ExitStack()

    def begin(self) -> None:
        with self._counting:
            if self._inside == 0:
                usual_s = sys.getswitchinterval()
                self._before.callback(sys.setswitchinterval, usual_s)
                sys.setswitchinterval(min(usual_s, SWITCH_S))
                self._before.enter_context(threadpool_limits(1, user_api="blas"))
            self._inside += 1

    def end(self) -> None:
        with self._counting:
            self._inside -= 1
            if self._inside == 0:
                self._before.close()


_SETTINGS = _Settings()


class Beside:
    """Takes works and does them in turn, beside the body of its `with`, which ends when all are done.

    The failure of one of them counts before any failure of the body.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._works: list[Future[None]] = []
        self.waited_s = 0.0
        """How long the works took once the body had ended."""

    def start(self, work: Callable[[], None]) -> None:
        """Do it once those before it are done."""
        self._works.append(self._thread.submit(work))

    def wait(self) -> None:
        """Until all are done. Raises the first failure."""
        for work in self._works:
            work.result()

    @property
    def failed(self) -> bool:
        """Whether any that is done has failed."""
        return any(work.done() and work.exception() is not None for work in self._works)

    def look(self) -> None:
        """Raises the failure of what is done by now."""
        for work in self._works:
            if work.done():
                work.result()

    def __enter__(self) -> Self:
        """It itself."""
        _SETTINGS.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait. Raises the first failure, unless the body was ended by something else than an audit's failure."""
        started = time.perf_counter()
        try:
            self._thread.shutdown()
        finally:
            _SETTINGS.end()
        self.waited_s = time.perf_counter() - started
        if error is None or isinstance(error, AuditFailure):
            self.look()
