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
    schema: str | None = None,
) -> None:
    """Register `torch.ops.kernelbraid.NAME` for a function `_NAME`; `fake` also checks what it is given.

    Without a schema the function's annotations are one.
    """
    name = f"kernelbraid::{run.__name__.lstrip('_')}"
    operator = torch.library.custom_op(name, run, mutates_args=tuple(mutates), schema=schema)
    operator.register_fake(fake)
    _runs[run.__name__.lstrip("_")] = run
    if backward is not None:
        operator.register_autograd(backward, setup_context=keep)


_runs: dict[str, Callable[..., Any]] = {}


def call(name: str, *arguments: Any) -> Any:
    """`torch.ops.kernelbraid.NAME`, past the dispatcher where it has nothing to do: no gradient and nothing traced.

    It takes tens of microseconds each time, and several operators of a layer run in fewer.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return getattr(torch.ops.kernelbraid, name)(*arguments)
    return _runs[name](*arguments)
