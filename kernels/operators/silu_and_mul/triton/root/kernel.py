"""silu_and_mul for Triton, plain: a program for a tile of tokens and columns."""

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
FULL_TOKENS, FULL_BLOCK, FULL_WARPS = 1, 1024, 4


@triton.jit(do_not_specialize=["tokens"])
def full(gate_up, y, tokens, inter, blocks, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """A few tokens' gate and up, a stretch of each."""
    token = (tl.program_id(0) // blocks * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    k = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (token < tokens) & (k < inter)
    at = gate_up + token * 2 * inter + k
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inter, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + token * inter + k, activated(gate, up).to(y.dtype.element_ty), mask=inside)


def silu_and_mul_full_bf16(gate_up: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, inter] from gate_up [tokens, 2, inter]."""
    tokens, inter = y.shape
    count, block = FULL_TOKENS, FULL_BLOCK
    blocks = triton.cdiv(inter, block)
    grid = (triton.cdiv(tokens, count) * blocks,)
    full[grid](gate_up, y, tokens, inter, blocks, TOKENS=count, BLOCK=block, num_warps=FULL_WARPS)


# endregion full


# region decode
DECODE_TOKENS, DECODE_BLOCK, DECODE_WARPS = 1, 1024, 4


@triton.jit(do_not_specialize=["tokens"])
def decode(gate_up, y, tokens, inter, blocks, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """A few tokens' gate and up, a stretch of each."""
    token = (tl.program_id(0) // blocks * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    k = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (token < tokens) & (k < inter)
    at = gate_up + token * 2 * inter + k
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inter, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + token * inter + k, activated(gate, up).to(y.dtype.element_ty), mask=inside)


def silu_and_mul_decode_bf16(gate_up: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, inter] from gate_up [tokens, 2, inter]."""
    tokens, inter = y.shape
    count, block = DECODE_TOKENS, DECODE_BLOCK
    blocks = triton.cdiv(inter, block)
    grid = (triton.cdiv(tokens, count) * blocks,)
    decode[grid](gate_up, y, tokens, inter, blocks, TOKENS=count, BLOCK=block, num_warps=DECODE_WARPS)


# endregion decode
