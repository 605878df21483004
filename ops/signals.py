"""Ctrl-C and SIGTERM: the first asks for a pause after the running audit, the second ends the process at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from kernelbraid.ops.exits import ExitCode
from kernelbraid.ops.terminal import tell

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def leave_at_once() -> None:
    """End without waiting for threads that audit: the log is safe at any moment, and children die with their parent."""
    os._exit(ExitCode.INTERRUPTED)


class Interruption:
    """While entered, signals are requests; `reason()` is what the driver asks between rounds."""

    def __init__(self, leave: Callable[[], None] = leave_at_once) -> None:
        self._leave = leave
        self._asked: str | None = None
        self._before: dict[int, object] = {}

    def reason(self) -> str | None:
        """Why to pause after the running audits; None while nobody asked."""
        return self._asked

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # exactly what signal() returned

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            tell("leaving at once: `kernelbraid resume` goes on from the last event")
            self._leave()
        self._asked = f"interrupted by {signal.Signals(number).name}"
        tell("pausing after the running audit; once more to leave at once")
