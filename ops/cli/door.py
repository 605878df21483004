"""The edge of the process: expected failures become a message and an exit code, never a traceback."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from kernelbraid.ops.exits import EXPECTED, ExitCode, ending_of
from kernelbraid.ops.report.figures import plain
from kernelbraid.ops.terminal import flush, tell


class Door(TyperGroup):
    """The command group, whose commands fail in words."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit with the code of what went wrong."""
        try:
            ended = super().invoke(ctx)
            flush()
            return ended
        except EXPECTED as error:
            raise typer.Exit(explain(error)) from None
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(ExitCode.OK) from None
        except OSError as error:
            _forget_stdout()
            tell(f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
            raise typer.Exit(ExitCode.FAILURE) from None
        except KeyboardInterrupt:
            tell("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def explain(error: Exception) -> ExitCode:
    """Say what failed and what to do next; returns the exit code."""
    ending = ending_of(error)
    tell(f"error: {plain(str(error)) or type(error).__name__}")
    if ending.next_step:
        tell(f"next:  {ending.next_step}")
    return ending.code


def _forget_stdout() -> None:
    """Whoever read stdout has left (`log C | head`): what is still buffered goes nowhere, without a second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
