"""silu_and_mul for Triton, plain: a program for every stretch of a token."""

import torch
import triton
import triton.language as tl


# region row
@triton.jit
def activated(gate, up):
    """silu of the gate, rounded to bfloat16, times up; all else in float32."""
    silu = gate / (1.0 + tl.exp(-gate))
    return silu.to(tl.bfloat16).to(tl.float32) * up


# endregion row


# region full
FULL_BLOCK, FULL_WARPS = 1024, 4


@triton.jit
def full(gate_up, y, inter, blocks, BLOCK: tl.constexpr):
    """One stretch of one token's gate and up."""
    token = (tl.program_id(0) // blocks).to(tl.int64)
    k = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = k < inter
    at = gate_up + token * 2 * inter + k
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inter, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + token * inter + k, activated(gate, up).to(y.dtype.element_ty), mask=inside)


def silu_and_mul_full_bf16(gate_up: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, inter] from gate_up [tokens, 2, inter]."""
    tokens, inter = y.shape
    blocks = triton.cdiv(inter, FULL_BLOCK)
    full[(tokens * blocks,)](gate_up, y, inter, blocks, BLOCK=FULL_BLOCK, num_warps=FULL_WARPS)


# endregion full


# region decode
DECODE_BLOCK, DECODE_WARPS = 1024, 4


@triton.jit
def decode(gate_up, y, inter, blocks, BLOCK: tl.constexpr):
    """One stretch of one token's gate and up."""
    token = (tl.program_id(0) // blocks).to(tl.int64)
    k = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = k < inter
    at = gate_up + token * 2 * inter + k
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inter, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + token * inter + k, activated(gate, up).to(y.dtype.element_ty), mask=inside)


def silu_and_mul_decode_bf16(gate_up: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, inter] from gate_up [tokens, 2, inter]."""
    tokens, inter = y.shape
    blocks = triton.cdiv(inter, DECODE_BLOCK)
    decode[(tokens * blocks,)](gate_up, y, inter, blocks, BLOCK=DECODE_BLOCK, num_warps=DECODE_WARPS)


# endregion decode
