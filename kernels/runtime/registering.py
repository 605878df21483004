"""How an operator becomes one of PyTorch's."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

DECODE_ROWS = 256
"""Up to so many rows the decode entry is taken; both have the same bits."""


def by_rows(operator: str, rows: int, dtype: str = "bf16") -> str:
    """The entry's symbol for so many rows."""
    return f"{operator}_{'decode' if rows <= DECODE_ROWS else 'full'}_{dtype}"


def register(
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    keep: Callable[..., None] | None = None,
    mutates: Iterable[str] = (),
) -> None:
    """Register `torch.ops.kernelbraid.NAME` for a function `_NAME`; `fake` also checks what it is given."""
    operator = torch.library.custom_op(f"kernelbraid::{run.__name__.lstrip('_')}", run, mutates_args=tuple(mutates))
    operator.register_fake(fake)
    if backward is not None:
        operator.register_autograd(backward, setup_context=keep)
