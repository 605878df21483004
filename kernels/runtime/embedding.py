"""Rows of a table."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """table[ids] [..., hidden] from ids int64 and table [vocab, hidden] bfloat16."""
    return call("embedding", ids.reshape(-1), table).view(*ids.shape, table.shape[1])


def _embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    y = _embedding_fake(ids, table)
    entry("embedding", by_rows("embedding", len(ids)))(ids.contiguous(), table, y)
    return y


def _embedding_fake(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    tensors.of_dtype("embedding", torch.int64, ids=ids)
    tensors.bfloat16("embedding", table=table)
    tensors.shaped("embedding", "table", table, ("vocab", "hidden"))
    return table.new_empty((ids.shape[0], table.shape[1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.rows = len(inputs[1])


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    (ids,) = ctx.saved_tensors
    return None, torch.ops.aten.embedding_dense_backward(gradient, ids, ctx.rows, -1, False)


register(_embedding, _embedding_fake, _backward, _keep)
