"""What a target's compiler looks like to the harness."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class MissingToolchain(Exception):
    """No compiler for a target was found; the message names the next step."""


@dataclass(frozen=True, slots=True)
class Command:
    """One compiler run: what to execute in the build directory, and which file it leaves there."""

    arguments: tuple[str, ...]
    artifact: str


class Toolchain(Protocol):
    """A compiler with its fixed flags."""

    @property
    def name(self) -> str:
        """The compiler's common name, such as gcc."""

    @property
    def version(self) -> str:
        """Its version in one line."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that every offspring is built with."""

    @property
    def digest(self) -> str:
        """SHA-256 over the name, version, compiler file and flags."""

    def command(self, sources: tuple[str, ...], flags: tuple[str, ...]) -> Command:
        """How to build the named source files with extra flags."""

    def environment(self, folder: Path) -> dict[str, str]:
        """Environment variables of a compilation in `folder`."""

    def reads(self) -> tuple[Path, ...]:
        """Paths that the compiler must be able to read."""

    def writes(self) -> tuple[Path, ...]:
        """Paths outside the build directory that it must be able to write; empty for most."""

    def resources(self, folder: Path) -> dict[str, float]:
        """Facts of the artifact built in `folder`."""
