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
    name = run.__name__.lstrip("_")
    operator = torch.library.custom_op(f"kernelbraid::{name}", run, mutates_args=tuple(mutates), schema=schema)
    operator.register_fake(fake)
    _runs[name] = run
    if backward is not None and keep is not None:
        operator.register_autograd(backward, setup_context=keep)
        _differentiable[name] = _function(name, run, backward, keep)


def _function(
    name: str, run: Callable[..., Any], backward: Callable[..., Any], keep: Callable[..., None]
) -> Callable[..., Any]:
    """The same forward and backward as what autograd itself calls."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        output = run(*arguments)
        keep(ctx, arguments, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(name, (torch.autograd.Function,), methods)
    apply: Callable[..., Any] = function.apply
    return apply


_runs: dict[str, Callable[..., Any]] = {}
_differentiable: dict[str, Callable[..., Any]] = {}


def call(name: str, *arguments: Any) -> Any:
    """`torch.ops.kernelbraid.NAME`, past the dispatcher where nothing is traced.

    The dispatcher takes up to a tenth of a millisecond for an operator in Python, and several of a layer run in less.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return getattr(torch.ops.kernelbraid, name)(*arguments)
    if torch.is_grad_enabled():
        return _differentiable.get(name, getattr(torch.ops.kernelbraid, name))(*arguments)
    return _runs[name](*arguments)
