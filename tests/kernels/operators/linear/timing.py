"""Times of products on the GPU here, as a decode step meets them: weights come from memory, x from the cache.

A CUDA graph holds several calls, each with the next of several copies of the weight: together they exceed the L2 cache,
so no call finds its weight there. Arms are replayed in turns and compared by their medians.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

ROTATED_BYTES = 160_000_000
MOST_COPIES = 40
MOST_CALLS = 40
REPLAY_US = 400.0
SEED = 1

Product = Callable[[Any], None]
"""Multiplies by the weight it is given."""


def operands(rows: int, outs: int, width: int) -> tuple[Any, list[Any]]:
    """x [rows, width] and copies of a weight [outs, width] with different values, as many as exceed the cache."""
    generator = torch.Generator("cuda").manual_seed(SEED + outs + 7 * width)

    def normal(count: int) -> Any:
        return torch.randn(count, width, device="cuda", generator=generator, dtype=torch.bfloat16)

    copies = min(MOST_COPIES, -(-ROTATED_BYTES // (2 * outs * width)))
    return normal(rows), [normal(outs) * width**-0.5 for _ in range(copies)]


def least_us(rows: int, outs: int, width: int) -> float:
    """About what an H200 needs at least: 700 TFLOP/s, 4.3 TB/s, 2 us for a launch."""
    moved_bytes = 2 * (rows * width + outs * width + rows * outs)
    return max(2 * rows * outs * width / 700e6, moved_bytes / 4.3e6, 2.0)


class Replay:
    """A captured series of calls of one product."""

    def __init__(self, product: Product, weights: Sequence[Any], call_us: float, replay_us: float = REPLAY_US) -> None:
        self.calls = max(1, min(MOST_CALLS, int(replay_us / call_us)))
        if 1 < self.calls < len(weights):
            self.calls = min(len(weights), MOST_CALLS)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product(weights[0])
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for call in range(self.calls):
                product(weights[call % len(weights)])
        self.graph.replay()

    def once_us(self) -> float:
        """Of one call, by one replay."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000 / self.calls


def medians_us(arms: Sequence[Replay], rounds: int) -> list[float]:
    """Of each arm, over rounds in which every arm is replayed once, there and back."""
    times: list[list[float]] = [[] for _ in arms]
    for turn in range(rounds):
        order = list(range(len(arms)))
        for arm in order if turn % 2 == 0 else reversed(order):
            times[arm].append(arms[arm].once_us())
    return [median(each) for each in times]
