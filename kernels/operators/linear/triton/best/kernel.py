"""linear for Triton, plain: one program for each tile of y, one chain of tensor core products along k.

A row's sums do not depend on which rows share its tile, nor on the tile's height or width: every element is one
chain of instructions of one kind (wgmma, which needs tiles of 64 rows or more), first k to last.
"""

import torch
import triton
import triton.language as tl

# region product
BLOCK_K = 64


@triton.jit
def product(x, w, row, out, rows, width, outs, BLOCK_K: tl.constexpr):
    """float32 sums of the tile of y at these rows and outs, from x [rows, width] and w [outs, width]."""
    total = tl.zeros([row.shape[0], out.shape[0]], tl.float32)
    x_row = x + row.to(tl.int64)[:, None] * width
    w_out = w + out.to(tl.int64)[None, :] * width
    for at in range(0, width, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        inside = k < width
        a = tl.load(x_row + k[None, :], mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(w_out + k[:, None], mask=(out < outs)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(a, b, total)
    return total


# endregion product


# region full
FULL_ROWS, FULL_OUTS, FULL_WARPS, FULL_STAGES = 128, 128, 8, 3


@triton.jit(do_not_specialize=["rows"])
def full(x, w, y, rows, width, outs, ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK_K: tl.constexpr):
    """One tile of y; neighbours in launch order share their part of w."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    total = product(x, w, row, out, rows, width, outs, BLOCK_K)
    at = y + row.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=(row < rows)[:, None] & (out < outs)[None, :])


def linear_full_bf16(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
    """y [rows, out] from x [rows, in] and w [out, in]."""
    (rows, width), (outs, _) = x.shape, w.shape
    grid = (triton.cdiv(rows, FULL_ROWS), triton.cdiv(outs, FULL_OUTS))
    full[grid](
        *(x, w, y, rows, width, outs),
        ROWS=FULL_ROWS,
        OUTS=FULL_OUTS,
        BLOCK_K=BLOCK_K,
        num_warps=FULL_WARPS,
        num_stages=FULL_STAGES,
    )


# endregion full


# region decode
DECODE_ROWS, DECODE_OUTS, DECODE_WARPS, DECODE_STAGES = 64, 64, 4, 3


@triton.jit(do_not_specialize=["rows"])
def decode(x, w, y, rows, width, outs, ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK_K: tl.constexpr):
    """One tile of y; neighbours in launch order share their part of w."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    total = product(x, w, row, out, rows, width, outs, BLOCK_K)
    at = y + row.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=(row < rows)[:, None] & (out < outs)[None, :])


def linear_decode_bf16(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
    """y [rows, out] from x [rows, in] and w [out, in]."""
    (rows, width), (outs, _) = x.shape, w.shape
    grid = (triton.cdiv(rows, DECODE_ROWS), triton.cdiv(outs, DECODE_OUTS))
    decode[grid](
        *(x, w, y, rows, width, outs),
        ROWS=DECODE_ROWS,
        OUTS=DECODE_OUTS,
        BLOCK_K=BLOCK_K,
        num_warps=DECODE_WARPS,
        num_stages=DECODE_STAGES,
    )


# endregion decode
