"""Rotary embedding, NeoX pairs, from a float32 table of cosines and sines."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register


def rope(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [tokens, query_heads, head_dim] and k [tokens, kv_heads, head_dim], turned to positions [tokens] int64.

    cos_sin [max_position, head_dim] float32 has the cosines of a position's pairs first, then the sines.
    """
    q_out, k_out = call("rope", q.contiguous(), k.contiguous(), positions, cos_sin)
    return q_out, k_out


def table(inverse_frequencies: torch.Tensor, positions: int, scaling: float = 1.0) -> torch.Tensor:
    """cos_sin [positions, head_dim] float32 from inverse_frequencies [head_dim / 2]."""
    place = torch.arange(positions, dtype=torch.float32, device=inverse_frequencies.device)
    angles = place[:, None] * inverse_frequencies.float()
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling


def _rope(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q_out, k_out = _rope_fake(q, k, positions, cos_sin)
    entry("rope", by_rows("rope", len(q)))(q, k, positions, cos_sin, q_out, k_out)
    return q_out, k_out


def _rope_fake(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors.bfloat16("rope", q=q, k=k)
    tensors.of_dtype("rope", torch.int64, positions=positions)
    tensors.of_dtype("rope", torch.float32, cos_sin=cos_sin)
    tensors.shaped("rope", "q", q, ("tokens", "query_heads", "head_dim"))
    tensors.shaped("rope", "k", k, (q.shape[0], "kv_heads", q.shape[2]))
    tensors.shaped("rope", "positions", positions, (q.shape[0],))
    tensors.shaped("rope", "cos_sin", cos_sin, ("max_position", q.shape[2]))
    return torch.empty_like(q), torch.empty_like(k)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[2:])


def _backward(ctx: Any, of_q: torch.Tensor, of_k: torch.Tensor) -> tuple[Any, ...]:
    """The same turn the other way round."""
    positions, cos_sin = ctx.saved_tensors
    back = cos_sin[positions]
    back[:, back.shape[1] // 2 :].neg_()
    return (*rope(of_q, of_k, torch.arange(len(back), device=back.device), back), None, None)


register(_rope, _rope_fake, _backward, _keep)
