"""rms_norm for Triton: a program for each row, in registers; full is launched before the kernel ahead has ended."""

import torch
import triton
import triton.language as tl

# region row
WARPS = 4


@triton.jit
def normalised(values, weights, hidden, epsilon):
    """One row, scaled. tl.sum adds in an order that follows from the block's size, its dtype and the warps."""
    mean = tl.div_rn(tl.sum(values * values, axis=0), tl.cast(hidden, tl.float32))
    return values * tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon)) * weights


# endregion row


# region full
@triton.jit
def full(x, weight, y, hidden, epsilon, BLOCK: tl.constexpr, LATE: tl.constexpr):
    """One row of x. Read after the sum, the weight takes no registers from loads that are under way."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * hidden
    k = tl.arange(0, BLOCK)
    inside = k < hidden
    values = tl.load(x + row + k, mask=inside, other=0.0).to(tl.float32)
    if LATE:
        result = normalised(values, 1.0, hidden, epsilon)
        result *= tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
    else:
        weights = tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
        result = normalised(values, weights, hidden, epsilon)
    tl.store(y + row + k, result.to(y.dtype.element_ty), mask=inside)


def rms_norm_full_bf16(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, epsilon: float = 1e-6) -> None:
    """y [rows, hidden] from x [rows, hidden] and weight [hidden]."""
    rows, hidden = x.shape
    block = triton.next_power_of_2(hidden)
    late = block > hidden
    full[(rows,)](x, weight, y, hidden, epsilon, BLOCK=block, LATE=late, launch_pdl=True, num_warps=WARPS)


# endregion full


# region decode
@triton.jit
def decode(x, weight, y, hidden, epsilon, BLOCK: tl.constexpr):
    """One row of x."""
    row = tl.program_id(0).to(tl.int64) * hidden
    k = tl.arange(0, BLOCK)
    inside = k < hidden
    values = tl.load(x + row + k, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row + k, normalised(values, weights, hidden, epsilon).to(y.dtype.element_ty), mask=inside)


def rms_norm_decode_bf16(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, epsilon: float = 1e-6) -> None:
    """y [rows, hidden] from x [rows, hidden] and weight [hidden]."""
    rows, hidden = x.shape
    block = triton.next_power_of_2(hidden)
    decode[(rows,)](x, weight, y, hidden, epsilon, BLOCK=block, num_warps=WARPS)


# endregion decode
