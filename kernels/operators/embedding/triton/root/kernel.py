"""embedding for Triton, plain: one program for each token."""

import torch
import triton
import triton.language as tl


# region row
@triton.jit
def copy(table, y, token, index, hidden, BLOCK: tl.constexpr):
    """One row."""
    k = tl.arange(0, BLOCK)
    taken = tl.load(table + index * hidden + k, mask=k < hidden)
    tl.store(y + token.to(tl.int64) * hidden + k, taken, mask=k < hidden)


# endregion row


# region full
FULL_WARPS = 4


@triton.jit
def full(ids, table, y, hidden, BLOCK: tl.constexpr):
    """The row of one token."""
    token = tl.program_id(0)
    copy(table, y, token, tl.load(ids + token).to(tl.int64), hidden, BLOCK)


def embedding_full_bf16(ids: torch.Tensor, table: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, hidden]: row ids[token] of table [vocab, hidden]."""
    tokens, hidden = y.shape
    full[(tokens,)](ids, table, y, hidden, BLOCK=triton.next_power_of_2(hidden), num_warps=FULL_WARPS)


# endregion full


# region decode
DECODE_WARPS = 4


@triton.jit
def decode(ids, table, y, hidden, BLOCK: tl.constexpr):
    """The row of one token."""
    token = tl.program_id(0)
    copy(table, y, token, tl.load(ids + token).to(tl.int64), hidden, BLOCK)


def embedding_decode_bf16(ids: torch.Tensor, table: torch.Tensor, y: torch.Tensor) -> None:
    """y [tokens, hidden]: row ids[token] of table [vocab, hidden]."""
    tokens, hidden = y.shape
    decode[(tokens,)](ids, table, y, hidden, BLOCK=triton.next_power_of_2(hidden), num_warps=DECODE_WARPS)


# endregion decode
