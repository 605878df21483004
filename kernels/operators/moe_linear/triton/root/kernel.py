"""moe_linear for Triton, plain: one program for each tile of one block's results.

A result is one chain of tensor core products along k, first to last, of one kind of instruction (wgmma, which needs
tiles of 64 rows or more): neither the block that a slot stands in nor its neighbours decide a bit.
"""

import torch
import triton
import triton.language as tl

# region product
BLOCK_K = 64


@triton.jit
def product(x, w, row, inside, out, width, outs, BLOCK_K: tl.constexpr):
    """float32 sums [rows, outs] of these rows of x with one expert's w [outs, width]."""
    total = tl.zeros([row.shape[0], out.shape[0]], tl.float32)
    x_row = x + row.to(tl.int64)[:, None] * width
    w_out = w + out.to(tl.int64)[None, :] * width
    for at in range(0, width, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        a = tl.load(x_row + k[None, :], mask=inside[:, None] & (k < width)[None, :], other=0.0)
        b = tl.load(w_out + k[:, None], mask=(out < outs)[None, :] & (k < width)[:, None], other=0.0)
        total = tl.dot(a, b, total)
    return total


# endregion product


# region full
FULL_OUTS, FULL_WARPS, FULL_STAGES = 128, 8, 3


@triton.jit(do_not_specialize=["slots", "each"])
def full(
    x,
    w,
    order,
    block_expert,
    y,
    slots,
    each,
    width,
    outs,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of one block; neighbours in launch order share the block's rows."""
    tiles = tl.cdiv(outs, OUTS)
    block, out = tl.program_id(0) // tiles, tl.program_id(0) % tiles * OUTS + tl.arange(0, OUTS)
    expert = tl.load(block_expert + block)
    if expert < 0:
        return
    slot = tl.load(order + block * ROWS + tl.arange(0, ROWS))
    inside = slot < slots
    of_expert = w + expert.to(tl.int64) * outs * width
    total = product(x, of_expert, slot // each, inside, out, width, outs, BLOCK_K)
    at = y + slot.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=inside[:, None] & (out < outs)[None, :])


def moe_linear_full_bf16(
    x: torch.Tensor, w: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor, y: torch.Tensor
) -> None:
    """y [rows, each, out] from x [rows, in] and w [experts, out, in]; slots stand in order [blocks, block]."""
    (blocks, rows), (slots, each), (_, outs, width) = order.shape, (y.shape[0] * y.shape[1], y.shape[1]), w.shape
    full[(blocks * triton.cdiv(outs, FULL_OUTS),)](
        *(x, w, order, block_expert, y, slots, each, width, outs),
        ROWS=rows,
        OUTS=FULL_OUTS,
        BLOCK_K=BLOCK_K,
        num_warps=FULL_WARPS,
        num_stages=FULL_STAGES,
    )


# endregion full


# region decode
DECODE_OUTS, DECODE_WARPS, DECODE_STAGES = 64, 4, 4


@triton.jit(do_not_specialize=["slots", "each"])
def decode(
    x,
    w,
    order,
    block_expert,
    y,
    slots,
    each,
    width,
    outs,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of one block; neighbours in launch order share the block's rows."""
    tiles = tl.cdiv(outs, OUTS)
    block, out = tl.program_id(0) // tiles, tl.program_id(0) % tiles * OUTS + tl.arange(0, OUTS)
    expert = tl.load(block_expert + block)
    if expert < 0:
        return
    slot = tl.load(order + block * ROWS + tl.arange(0, ROWS))
    inside = slot < slots
    of_expert = w + expert.to(tl.int64) * outs * width
    total = product(x, of_expert, slot // each, inside, out, width, outs, BLOCK_K)
    at = y + slot.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=inside[:, None] & (out < outs)[None, :])


def moe_linear_decode_bf16(
    x: torch.Tensor, w: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor, y: torch.Tensor
) -> None:
    """y [rows, each, out] from x [rows, in] and w [experts, out, in]; slots stand in order [blocks, block]."""
    (blocks, rows), (slots, each), (_, outs, width) = order.shape, (y.shape[0] * y.shape[1], y.shape[1]), w.shape
    decode[(blocks * triton.cdiv(outs, DECODE_OUTS),)](
        *(x, w, order, block_expert, y, slots, each, width, outs),
        ROWS=rows,
        OUTS=DECODE_OUTS,
        BLOCK_K=BLOCK_K,
        num_warps=DECODE_WARPS * rows // 64,
        num_stages=DECODE_STAGES,
    )


# endregion decode
