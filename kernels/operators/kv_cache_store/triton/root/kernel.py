"""kv_cache_store for Triton, plain: one program for each token."""

import torch
import triton
import triton.language as tl


# region row
@triton.jit
def copy(values, cache, token, slot, width, BLOCK: tl.constexpr):
    """All heads of one token."""
    k = tl.arange(0, BLOCK)
    taken = tl.load(values + token.to(tl.int64) * width + k, mask=k < width)
    tl.store(cache + slot * width + k, taken, mask=k < width)


# endregion row


# region full
FULL_WARPS = 4


@triton.jit
def full(k, v, slot_mapping, k_cache, v_cache, width, BLOCK: tl.constexpr):
    """One token into its slot; padding has none."""
    token = tl.program_id(0)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        copy(k, k_cache, token, slot, width, BLOCK)
        copy(v, v_cache, token, slot, width, BLOCK)


def kv_cache_store_full_bf16(
    k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """k and v [tokens, kv_heads, head_dim] into k_cache and v_cache [slots, kv_heads, head_dim]."""
    tokens, kv_heads, head_dim = k.shape
    width = kv_heads * head_dim
    block = triton.next_power_of_2(width)
    full[(tokens,)](k, v, slot_mapping, k_cache, v_cache, width, BLOCK=block, num_warps=FULL_WARPS)


# endregion full


# region decode
DECODE_WARPS = 4


@triton.jit
def decode(k, v, slot_mapping, k_cache, v_cache, width, BLOCK: tl.constexpr):
    """One token into its slot; padding has none."""
    token = tl.program_id(0)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        copy(k, k_cache, token, slot, width, BLOCK)
        copy(v, v_cache, token, slot, width, BLOCK)


def kv_cache_store_decode_bf16(
    k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """k and v [tokens, kv_heads, head_dim] into k_cache and v_cache [slots, kv_heads, head_dim]."""
    tokens, kv_heads, head_dim = k.shape
    width = kv_heads * head_dim
    block = triton.next_power_of_2(width)
    decode[(tokens,)](k, v, slot_mapping, k_cache, v_cache, width, BLOCK=block, num_warps=DECODE_WARPS)


# endregion decode
