"""What checks and timing ask of a candidate's process and its memory, on the CPU and on a device alike."""

from typing import Any, Protocol

from numpy.typing import NDArray

from kernelbraid.kernels.audit.layout import Layout, Place


class InputMemory(Protocol):
    """Where the auditor lays inputs out."""

    def fill(self, place: Place, values: NDArray[Any]) -> None:
        """Write one tensor. Raises ValueError when shape or dtype is not the declared one."""


class OutputMemory(Protocol):
    """Where a process leaves its results."""

    def poison(self, layout: Layout) -> None:
        """Overwrite all windows of the layout with a pattern that changes."""

    def poison_of(self, place: Place) -> NDArray[Any]:
        """What the tensor would hold had nothing been written since the last poison."""
        ...

    def read(self, place: Place) -> NDArray[Any]:
        """A copy of the tensor."""
        ...

    def first_broken_canary(self, layout: Layout) -> tuple[int, int, int] | None:
        """(offset, found byte, expected byte) of the first canary byte that was overwritten."""


class Running(Protocol):
    """A candidate's process, loaded."""

    @property
    def outputs(self) -> OutputMemory:
        """Its results."""
        ...

    def prepare(self, layout: Layout) -> None:
        """Make a layout known to it."""

    def go(self, layout: Layout, freeze: bool) -> object:
        """Release the layout's calls and wait for them; a frozen process is stopped before this returns.

        Raises CandidateFailed when they did not come to an end as they should.
        """

    def thaw(self, settle: bool = False) -> None:
        """Let a frozen process go on."""
