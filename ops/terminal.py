"""Where words go: data on stdout, everything else on stderr, in signs that the terminal knows."""

import io
import os
import sys
from typing import TextIO

import orjson
from rich.console import Console

PIPED_COLUMNS = 160
"""Width of text that goes to a file or a pipe, so that tables are not cut as on a narrow terminal."""

_LOCALE_VARIABLES = ("LC_ALL", "LC_CTYPE", "LANG")


def prepare_streams() -> None:
    """Make sure that no text can fail to be written.

    Under a plain C locale signs beyond ASCII are written as escapes, and tables, trees and bars are drawn in ASCII.
    """
    # Python has no such stream at all where the shell closed it.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    encoding = "ascii" if _plain_locale() else None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _plain_locale() -> bool:
    """Whether the user asked for the C locale; Python itself would write UTF-8 all the same."""
    asked = next((os.environ[name] for name in _LOCALE_VARIABLES if os.environ.get(name)), "")
    return asked in ("C", "POSIX")


def draws_unicode(stream: TextIO) -> bool:
    """Whether the stream can show lines, blocks and arrows."""
    return (stream.encoding or "ascii").lower().replace("-", "").startswith("utf")


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is looking."""
    return stream.isatty()


def console(stream: TextIO) -> Console:
    """A rich console on the stream; colour only on a terminal and never with NO_COLOR."""
    width = None if is_terminal(stream) else PIPED_COLUMNS
    return Console(file=stream, width=width, highlight=False, soft_wrap=True, emoji=False)


def say(line: str = "") -> None:
    """A line of text on stdout."""
    sys.stdout.write(line + "\n")


def flush() -> None:
    """Hand everything on stdout to whoever reads it."""
    sys.stdout.flush()


def tell(line: str = "") -> None:
    """A line for the person at the terminal, on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def emit(content: object, *, indent: bool = True) -> None:
    """JSON on stdout, always UTF-8."""
    option = orjson.OPT_INDENT_2 if indent else 0
    line = orjson.dumps(content, option=option | orjson.OPT_APPEND_NEWLINE).decode()
    if draws_unicode(sys.stdout):
        sys.stdout.write(line)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(line.encode())
    sys.stdout.buffer.flush()
