"""moe_combine for Triton, plain: one program for each token, its slots one after the other.

An element of y is one chain of fused multiply-adds, first slot to last, so that no tile and no batch decides its bits.
"""

import torch
import triton
import triton.language as tl


# region slots
@triton.jit
def combined(outputs, weights, token, h, inside, hidden, K: tl.constexpr):
    """float32 sum over one token's slots, at the hidden positions h."""
    total = tl.zeros(h.shape, tl.float32)
    for slot in tl.static_range(K):
        at = token.to(tl.int64) * K + slot
        values = tl.load(outputs + at * hidden + h, mask=inside, other=0.0).to(tl.float32)
        total = tl.fma(values, tl.load(weights + at), total)
    return total


# endregion slots


# region full
FULL_WIDTH, FULL_WARPS = 1024, 4


@triton.jit
def full(outputs, weights, y, hidden, K: tl.constexpr, WIDTH: tl.constexpr):
    """A stretch of one token."""
    token = tl.program_id(0)
    h = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = h < hidden
    total = combined(outputs, weights, token, h, inside, hidden, K)
    tl.store(y + token.to(tl.int64) * hidden + h, total.to(y.dtype.element_ty), mask=inside)


def moe_combine_full_bf16(outputs: torch.Tensor, weights: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, hidden] from outputs [tokens, k, hidden] and weights [tokens, k]."""
    tokens, k, hidden = outputs.shape
    grid = (tokens, triton.cdiv(hidden, FULL_WIDTH))
    full[grid](outputs, weights, y, hidden, K=k, WIDTH=FULL_WIDTH, num_warps=FULL_WARPS)


# endregion full


# region decode
DECODE_WIDTH, DECODE_WARPS = 256, 1


@triton.jit
def decode(outputs, weights, y, hidden, K: tl.constexpr, WIDTH: tl.constexpr):
    """A stretch of one token."""
    token = tl.program_id(0)
    h = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = h < hidden
    total = combined(outputs, weights, token, h, inside, hidden, K)
    tl.store(y + token.to(tl.int64) * hidden + h, total.to(y.dtype.element_ty), mask=inside)


def moe_combine_decode_bf16(outputs: torch.Tensor, weights: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, hidden] from outputs [tokens, k, hidden] and weights [tokens, k]."""
    tokens, k, hidden = outputs.shape
    grid = (tokens, triton.cdiv(hidden, DECODE_WIDTH))
    decode[grid](outputs, weights, y, hidden, K=k, WIDTH=DECODE_WIDTH, num_warps=DECODE_WARPS)


# endregion decode
