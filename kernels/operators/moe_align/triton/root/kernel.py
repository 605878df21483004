"""moe_align for Triton, plain: a program for each expert counts its slots, then another lays them down in order.

One program more fills the blocks that no expert needs. Nothing is added by atomics, so the order is the slots' own.
"""

import torch
import triton
import triton.language as tl


# region count
@triton.jit(do_not_specialize=["slots"])
def count(ids, counts, slots, SLOTS: tl.constexpr):
    """How many of the slots went to one expert."""
    expert = tl.program_id(0)
    total = tl.zeros([SLOTS], tl.int32)
    for first in range(0, slots, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        total += (tl.load(ids + slot, mask=slot < slots, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


# endregion count


# region place
@triton.jit
def filled(order, block_expert, at, first_block, end_block, name, slots, block, SLOTS: tl.constexpr):
    """The blocks from first_block on are this expert's, and hold nothing from `at` on."""
    for first in range(at, end_block * block, SLOTS):
        to = first + tl.arange(0, SLOTS)
        tl.store(order + to, tl.zeros([SLOTS], tl.int32) + slots, mask=to < end_block * block)
    for first in range(first_block, end_block, SLOTS):
        to = first + tl.arange(0, SLOTS)
        tl.store(block_expert + to, tl.zeros([SLOTS], tl.int32) + name, mask=to < end_block)


@triton.jit
def placed(
    ids, own, order, block_expert, ends, slots, experts, blocks, block, EXPERTS: tl.constexpr, SLOTS: tl.constexpr
):
    """One expert's slots, in order, into its own blocks; own [EXPERTS] are all experts' slots."""
    expert, e = tl.program_id(0), tl.arange(0, EXPERTS)
    used = (own + block - 1) // block
    first_block = tl.sum(tl.where(e < expert, used, 0), 0)
    end_block = first_block + tl.sum(tl.where(e == expert, used, 0), 0)
    at = first_block * block
    name = expert
    if expert < experts:
        tl.store(ends + expert, end_block * block)
        for first in range(0, slots, SLOTS):
            slot = first + tl.arange(0, SLOTS)
            found = (tl.load(ids + slot, mask=slot < slots, other=-1) == expert).to(tl.int32)
            to = at + tl.cumsum(found, 0) - found
            tl.store(order + to, slot, mask=(found > 0) & (to < blocks * block))
            at += tl.sum(found, 0)
    else:
        end_block = blocks
        name = -1
    filled(order, block_expert, at, first_block, tl.minimum(end_block, blocks), name, slots, block, SLOTS)


@triton.jit(do_not_specialize=["slots", "blocks"])
def place(
    ids,
    counts,
    order,
    block_expert,
    ends,
    slots,
    experts,
    blocks,
    block,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """One expert's slots, by what was counted of all."""
    e = tl.arange(0, EXPERTS)
    own = tl.load(counts + e, mask=e < experts, other=0)
    placed(ids, own, order, block_expert, ends, slots, experts, blocks, block, EXPERTS, SLOTS)


# endregion place


# region full
FULL_SLOTS, FULL_WARPS = 2048, 8


def moe_align_full_i32(ids: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor, ends: torch.Tensor) -> None:
    """order [blocks, block], block_expert [blocks] and ends [experts] from ids [tokens, k]."""
    (blocks, block), (experts,), slots = order.shape, ends.shape, ids.numel()
    counts = torch.empty(experts, dtype=torch.int32, device=ids.device)
    count[(experts,)](ids, counts, slots, SLOTS=FULL_SLOTS, num_warps=FULL_WARPS)
    place[(experts + 1,)](
        *(ids, counts, order, block_expert, ends, slots, experts, blocks, block),
        EXPERTS=triton.next_power_of_2(experts),
        SLOTS=FULL_SLOTS,
        num_warps=FULL_WARPS,
    )


# endregion full


# region decode
DECODE_SLOTS, DECODE_WARPS = 512, 4


def moe_align_decode_i32(
    ids: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor, ends: torch.Tensor
) -> None:
    """order [blocks, block], block_expert [blocks] and ends [experts] from ids [tokens, k]."""
    (blocks, block), (experts,), slots = order.shape, ends.shape, ids.numel()
    counts = torch.empty(experts, dtype=torch.int32, device=ids.device)
    count[(experts,)](ids, counts, slots, SLOTS=DECODE_SLOTS, num_warps=DECODE_WARPS)
    place[(experts + 1,)](
        *(ids, counts, order, block_expert, ends, slots, experts, blocks, block),
        EXPERTS=triton.next_power_of_2(experts),
        SLOTS=DECODE_SLOTS,
        num_warps=DECODE_WARPS,
    )


# endregion decode
