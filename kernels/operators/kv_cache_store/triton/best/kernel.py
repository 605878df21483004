"""kv_cache_store for Triton, launched before the kernel ahead of it has ended: a program for a few whole tokens."""

import torch
import triton
import triton.language as tl


# region row
@triton.jit
def copy(values, cache, token, slot, stride, width, BLOCK: tl.constexpr):
    """All heads of each token into its slot; padding has none."""
    k = tl.arange(0, BLOCK)[None, :]
    inside = (slot >= 0)[:, None] & (k < width)
    taken = tl.load(values + token.to(tl.int64)[:, None] * stride + k, mask=inside)
    tl.store(cache + slot[:, None] * width + k, taken, mask=inside)


# endregion row


# region full
FULL_TOKENS, FULL_WARPS = 1, 2


@triton.jit(do_not_specialize=["tokens"])
def full(
    k, v, slot_mapping, k_cache, v_cache, tokens, k_stride, v_stride, width, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):
    """The keys of a few tokens, then their values."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token, mask=token < tokens, other=-1).to(tl.int64)
    copy(k, k_cache, token, slot, k_stride, width, BLOCK)
    copy(v, v_cache, token, slot, v_stride, width, BLOCK)


def kv_cache_store_full_bf16(
    k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """k and v [tokens, kv_heads, head_dim] into k_cache and v_cache [slots, kv_heads, head_dim].

    Tokens of k and of v may be any stride apart.
    """
    tokens, kv_heads, head_dim = k.shape
    width = kv_heads * head_dim
    block = triton.next_power_of_2(width)
    count = max(FULL_TOKENS, 2048 // block)
    grid = (triton.cdiv(tokens, count),)
    sizes = (tokens, k.stride(0), v.stride(0), width, count, block)
    full[grid](k, v, slot_mapping, k_cache, v_cache, *sizes, launch_pdl=True, num_warps=FULL_WARPS)


# endregion full


# region decode
DECODE_TOKENS, DECODE_WARPS = 1, 4


@triton.jit(do_not_specialize=["tokens"])
def decode(
    k, v, slot_mapping, k_cache, v_cache, tokens, k_stride, v_stride, width, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):
    """The keys of a few tokens, then their values."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token, mask=token < tokens, other=-1).to(tl.int64)
    copy(k, k_cache, token, slot, k_stride, width, BLOCK)
    copy(v, v_cache, token, slot, v_stride, width, BLOCK)


def kv_cache_store_decode_bf16(
    k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """k and v [tokens, kv_heads, head_dim] into k_cache and v_cache [slots, kv_heads, head_dim].

    Tokens of k and of v may be any stride apart.
    """
    tokens, kv_heads, head_dim = k.shape
    width = kv_heads * head_dim
    block = triton.next_power_of_2(width)
    count = max(DECODE_TOKENS, 1024 // block)
    grid = (triton.cdiv(tokens, count),)
    sizes = (tokens, k.stride(0), v.stride(0), width, count, block)
    decode[grid](k, v, slot_mapping, k_cache, v_cache, *sizes, launch_pdl=True, num_warps=DECODE_WARPS)


# endregion decode
