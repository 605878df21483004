"""Causal attention: `kernelbraid::attention` for whole sequences, `kernelbraid::attention_decode` against a cache.

Sequences lie one after the other: sequence b has the queries from cu_queries[b] up to cu_queries[b + 1] and the keys
from cu_keys[b] up to cu_keys[b + 1]; its queries are those of its last keys. A row's bits depend on its own sequence
alone, and a decoded row equals the same row of a whole sequence.
"""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import call, register

HEAD_DIMS = (64, 128)
LARGEST_GROUP = 16


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_queries: torch.Tensor,
    cu_keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [tokens, query_heads, head_dim] bfloat16 and log-sum-exp [tokens, query_heads] float32.

    q [tokens, query_heads, head_dim], k and v [keys, kv_heads, head_dim] bfloat16; cu_queries and cu_keys
    [batch + 1] int32; most_queries and most_keys bound the lengths of one sequence (the backward needs them).
    """
    out, lse = call(
        "attention", *(q.contiguous(), k.contiguous(), v.contiguous(), cu_queries, cu_keys, most_queries, most_keys)
    )
    return out, lse


def attention_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The last `steps` tokens of each sequence: output like q, and log-sum-exp [batch, steps, query_heads] float32.

    q [batch, steps, query_heads, head_dim], k and v [pages, page_tokens, kv_heads, head_dim] bfloat16; table
    [batch, slots] and lengths [batch] int32. A contiguous cache has one page for each sequence. No backward.
    """
    out, lse = call("attention_decode", q.contiguous(), k, v, table, lengths)
    return out, lse


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_queries: torch.Tensor,
    cu_keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _attention_fake(q, k, v, cu_queries, cu_keys)
    starts, counts = cu_queries[:-1], torch.diff(cu_queries)
    entry("attention", "attention_full_bf16")(
        *(q, k, v, starts, counts, cu_keys[:-1], torch.diff(cu_keys), out, lse),
    )
    return out, lse


def _attention_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_queries: torch.Tensor, cu_keys: torch.Tensor, *_: int
) -> tuple[torch.Tensor, torch.Tensor]:
    name = "attention"
    tensors.bfloat16(name, q=q, k=k, v=v)
    tensors.of_dtype(name, torch.int32, cu_queries=cu_queries, cu_keys=cu_keys)
    tensors.shaped(name, "q", q, ("tokens", "query_heads", "head_dim"))
    tensors.shaped(name, "k", k, ("keys", "kv_heads", q.shape[-1]))
    tensors.shaped(name, "v", v, k.shape)
    tensors.shaped(name, "cu_queries", cu_queries, ("batch + 1",))
    tensors.shaped(name, "cu_keys", cu_keys, cu_queries.shape)
    _heads(name, q.shape[-2], k.shape[-2], q.shape[-1])
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _attention_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _attention_decode_fake(q, k, v, table, lengths)
    entry("attention", "attention_decode_bf16")(q, k, v, table, lengths, out, lse)
    return out, lse


def _attention_decode_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    name = "attention_decode"
    tensors.bfloat16(name, q=q, k=k, v=v)
    tensors.of_dtype(name, torch.int32, table=table, lengths=lengths)
    tensors.shaped(name, "q", q, ("batch", "steps", "query_heads", "head_dim"))
    tensors.shaped(name, "k", k, ("pages", "page_tokens", "kv_heads", q.shape[-1]))
    tensors.shaped(name, "v", v, k.shape)
    tensors.shaped(name, "table", table, (q.shape[0], "slots"))
    tensors.shaped(name, "lengths", lengths, (q.shape[0],))
    _heads(name, q.shape[-2], k.shape[-2], q.shape[-1])
    if not (k.is_contiguous() and v.is_contiguous()):
        raise ValueError(
            f"{name} takes a contiguous cache: allocate k and v as [pages, page_tokens, kv_heads, head_dim]"
        )
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _heads(name: str, query_heads: int, kv_heads: int, head_dim: int) -> None:
    if head_dim not in HEAD_DIMS:
        raise ValueError(
            f"{name} takes a head_dim of 64 or 128, not {head_dim}: pad the heads, or use another attention"
        )
    if query_heads % kv_heads or query_heads // kv_heads > LARGEST_GROUP:
        raise ValueError(
            f"{name} takes query heads in equal groups of at most {LARGEST_GROUP} to a KV head, "
            f"not {query_heads} to {kv_heads}"
        )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, v, cu_queries, cu_keys, most_queries, most_keys = inputs
    ctx.save_for_backward(q, k, v, cu_queries, cu_keys, *output)
    ctx.most = most_queries, most_keys
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    q, k, v, cu_queries, cu_keys, out, lse = ctx.saved_tensors
    return (
        *gradients(gradient.contiguous(), q, k, v, out, lse, cu_queries, cu_keys, *ctx.most),
        None,
        None,
        None,
        None,
    )


def gradients(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_queries: torch.Tensor,
    cu_keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of q, k and v, by PyTorch's FlashAttention-2 backward on this forward's output and log-sum-exp."""
    unused = torch.empty(2, dtype=torch.uint64, device=q.device)
    of_q, of_k, of_v = torch.ops.aten._flash_attention_backward(
        *(gradient, q, k, v, out, lse.t().contiguous(), cu_queries, cu_keys, most_queries, most_keys),
        *(0.0, True, unused, unused),
        scale=q.shape[-1] ** -0.5,
    )
    return of_q, of_k, of_v


register(_attention, _attention_fake, _backward, _keep)
register(_attention_decode, _attention_decode_fake)
