"""Diagnostics through structlog, on stderr: a console line on a terminal, a JSON line elsewhere.

They are quiet by default; progress and results are not written here. Whatever could be a secret is masked.
"""

import logging
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

from kernelbraid.ops.terminal import is_terminal

Level = Literal["debug", "info", "warning", "error"]
LEVEL_VARIABLE = "KERNELBRAID_LOG_LEVEL"

MASK = "***"
_SECRET_KEY = re.compile(
    r"(^|_)(api_key|hmac_key|key|token|secret|password|authorization|credentials?)$", re.IGNORECASE
)
_SECRET_TEXT = re.compile(r"(?<=://)[^/@\s]+(?=@)|\bsk-[\w-]{8,}|(?<=Bearer )\S+")


def configure(level: Level) -> None:
    """Set structlog up for this process."""
    terminal = is_terminal(sys.stderr)
    renderer = (
        structlog.dev.ConsoleRenderer(colors=_colours())
        if terminal
        else structlog.processors.JSONRenderer(default=str, sort_keys=True)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks if not terminal else structlog.processors.StackInfoRenderer(),
            masked,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=_to_stderr,
        cache_logger_on_first_use=False,
    )


def _to_stderr(*names: object) -> structlog.PrintLogger:
    """Bound late, so that a replaced stderr is the one written to."""
    return structlog.PrintLogger(file=sys.stderr)


def _colours() -> bool:
    return not os.environ.get("NO_COLOR")


def logger() -> structlog.typing.FilteringBoundLogger:
    """The logger of this process; bind campaign, position and action to it."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return bound


def masked(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The entry without secrets: values under telling names, credentials in URLs, keys in text."""
    for name, value in event.items():
        if _SECRET_KEY.search(name):
            event[name] = MASK
        elif isinstance(value, str):
            event[name] = _SECRET_TEXT.sub(MASK, value)
    return event
