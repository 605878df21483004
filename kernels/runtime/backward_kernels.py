"""Backward passes in Triton, for what memory bounds: every tensor is read and written once.

Sums are float32, in an order that follows from the tile. Nothing here is compared bit for bit: decode has no backward.
"""

import torch
import triton
import triton.language as tl

TILE, ELEMENTS = 1024, 8
"""Elements of a tile, of one row at least; elements for each thread."""
WARPS = 132 * 64
"""In flight on an H200, each walking over rows."""
GATED_BLOCK = 1024


@triton.jit
def of_rows(
    x,
    weight,
    gradient,
    more,
    positions,
    cos_sin,
    of_x,
    of_weight,
    rows,
    x_stride,
    epsilon,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    TURN: tl.constexpr,
    MORE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of x, HEADS of them for each token: turned back, through the norm, and what else x went into added."""
    k = tl.arange(0, BLOCK)[None, :]
    weights = tl.load(weight + k, mask=k < WIDTH, other=0.0).to(tl.float32) if NORM else 0.0
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        token = row // HEADS
        inside = (row < rows) & (k < WIDTH)
        at = token.to(tl.int64) * x_stride + row % HEADS * WIDTH + k
        passed = tl.load(gradient + row.to(tl.int64) * WIDTH + k, mask=inside, other=0.0).to(tl.float32)
        if TURN:
            half: tl.constexpr = WIDTH // 2
            across = row.to(tl.int64) * WIDTH + (k + half) % WIDTH
            other = tl.load(gradient + across, mask=inside, other=0.0).to(tl.float32)
            angle = tl.load(positions + token, mask=row < rows, other=0) * WIDTH + k % half
            cos = tl.load(cos_sin + angle, mask=inside, other=0.0)
            sin = tl.load(cos_sin + angle + half, mask=inside, other=0.0)
            passed = passed * cos + tl.where(k < half, other, -other) * sin
        if NORM:
            values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            inverse = tl.rsqrt(tl.sum(values * values, 1) / WIDTH + epsilon)[:, None]
            unit = values * inverse
            total += passed * unit
            passed = passed * weights
            passed = inverse * (passed - unit * (tl.sum(passed * unit, 1) / WIDTH)[:, None])
        if MORE:
            passed += tl.load(more + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(of_x + at, passed.to(of_x.dtype.element_ty), mask=inside)
    if NORM:
        tl.store(of_weight + tl.program_id(0) * WIDTH + k, tl.sum(total, 0)[None, :], mask=k < WIDTH)


def rows_backward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    gradient: torch.Tensor,
    of_x: torch.Tensor,
    epsilon: float = 0.0,
    more: torch.Tensor | None = None,
    turn: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor | None:
    """Fill of_x [tokens, heads, width] and give the gradient of weight [width] where there is one.

    x and of_x lie alike, tokens any stride apart; gradient and more [tokens, heads, width] are contiguous. turn is
    positions [tokens] int64 and cos_sin [max_position, width] float32, as in the forward.
    """
    tokens, heads, width = x.shape
    block = triton.next_power_of_2(width)
    count = max(1, TILE // block)
    warps = min(16, max(1, count * block // (32 * ELEMENTS)))
    programs = max(1, min(WARPS // warps, triton.cdiv(tokens * heads, count)))
    sums = gradient.new_empty((programs, width) if weight is not None else (0,), dtype=torch.float32)
    of_rows[(programs,)](
        *(x, x if weight is None else weight, gradient, gradient if more is None else more),
        *(turn or (x, x)),
        *(of_x, sums, tokens * heads, x.stride(0), epsilon),
        HEADS=heads,
        WIDTH=width,
        NORM=weight is not None,
        TURN=turn is not None,
        MORE=more is not None,
        ROWS=count,
        BLOCK=block,
        num_warps=warps,
    )
    return None if weight is None else sums.sum(0).to(weight.dtype)


@triton.jit
def of_gated(gate_up, gradient, of_gate_up, inter, blocks, BLOCK: tl.constexpr):
    """A stretch of one token's gate and up."""
    token = (tl.program_id(0) // blocks).to(tl.int64)
    k = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = k < inter
    at = token * 2 * inter + k
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + inter, mask=inside, other=0.0).to(tl.float32)
    passed = tl.load(gradient + token * inter + k, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    of_gate = passed * up * share * (1.0 + gate * (1.0 - share))
    tl.store(of_gate_up + at, of_gate.to(of_gate_up.dtype.element_ty), mask=inside)
    tl.store(of_gate_up + at + inter, (passed * gate * share).to(of_gate_up.dtype.element_ty), mask=inside)


def gated_backward(gate_up: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Of gate_up [tokens, 2 * inter] from gradient [tokens, inter], both contiguous."""
    tokens, inter = gradient.shape
    of_gate_up = torch.empty_like(gate_up)
    blocks = triton.cdiv(inter, GATED_BLOCK)
    of_gated[(tokens * blocks,)](gate_up, gradient, of_gate_up, inter, blocks, BLOCK=GATED_BLOCK, num_warps=4)
    return of_gate_up
