"""fused_add_rms_norm for Triton, plain: one program for each row, the whole row in registers."""

import torch
import triton
import triton.language as tl

# region row
WARPS = 4


@triton.jit
def added(values, others):
    """The new residual, rounded: what is normalised is what is stored."""
    return (values + others).to(tl.bfloat16)


@triton.jit
def normalised(values, weights, hidden, epsilon):
    """One row, scaled. tl.sum adds in an order that follows from the block's size, its dtype and the warps."""
    mean = tl.div_rn(tl.sum(values * values, axis=0), tl.cast(hidden, tl.float32))
    return values * tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon)) * weights


@triton.jit
def norm(x, residual, weight, y, residual_out, hidden, epsilon, BLOCK: tl.constexpr):
    """One row of x and of the residual."""
    row = tl.program_id(0).to(tl.int64) * hidden
    k = tl.arange(0, BLOCK)
    inside = k < hidden
    values = tl.load(x + row + k, mask=inside, other=0.0).to(tl.float32)
    others = tl.load(residual + row + k, mask=inside, other=0.0).to(tl.float32)
    total = added(values, others)
    tl.store(residual_out + row + k, total, mask=inside)
    weights = tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
    result = normalised(total.to(tl.float32), weights, hidden, epsilon)
    tl.store(y + row + k, result.to(y.dtype.element_ty), mask=inside)


def launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    residual_out: torch.Tensor,
    epsilon: float,
) -> None:
    """y and residual_out [rows, hidden] from x and residual [rows, hidden] and weight [hidden]."""
    rows, hidden = x.shape
    block = triton.next_power_of_2(hidden)
    norm[(rows,)](x, residual, weight, y, residual_out, hidden, epsilon, BLOCK=block, num_warps=WARPS)


# endregion row


# region full
def fused_add_rms_norm_full_bf16(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    residual_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """y and residual_out [rows, hidden] from x and residual [rows, hidden] and weight [hidden]."""
    launch(x, residual, weight, y, residual_out, epsilon)


# endregion full


# region decode
def fused_add_rms_norm_decode_bf16(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    residual_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """y and residual_out [rows, hidden] from x and residual [rows, hidden] and weight [hidden]."""
    launch(x, residual, weight, y, residual_out, epsilon)


# endregion decode
