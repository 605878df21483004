"""Blank processes that open the device ahead of need: a start takes longer than most kernels take to time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kernelbraid.kernels.audit.cuda.runner import DeviceRunner


@dataclass
class Spares:
    """Blank processes of one harness, used by whoever holds the device's lock. No candidate has been in any of them."""

    start: Callable[[], DeviceRunner]
    reap: Callable[[], None]
    """Waits for the processes that were abandoned."""
    waiting: list[DeviceRunner] = field(default_factory=list)

    def prepare(self, count: int) -> None:
        """Begin to start processes until so many are waiting."""
        while len(self.waiting) < count:
            self.waiting.append(self.start())

    def take(self, graphs: bool) -> DeviceRunner:
        """One of them, or a new one."""
        runner = self.waiting.pop(0) if self.waiting else self.start()
        runner.graphs = graphs
        return runner

    def quiet(self) -> None:
        """Wait until no process is still opening the device, or giving it back: either disturbs a clock."""
        for runner in self.waiting:
            runner.started()
        self.reap()

    def close(self) -> None:
        """End them all."""
        while self.waiting:
            self.waiting.pop().close()
