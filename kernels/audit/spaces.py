"""One range of sizes that an operator declares: what a call in it may cost, and calls drawn from it at given sizes."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

import numpy as np

from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.operators.operator import Beyond, Entry, Tensor

Dims = Mapping[str, int]
Names = tuple[str, ...]
"""A measure: the product of these dims."""

NEAR_RATIO = 0.25
"""How often a dim that is not sought itself lies beside a size in the sources."""
UNREMARKABLE = 9
"""Where it does not, it is in the upper half of what it can be, by its logarithm,"""
LARGE_RATIO = 0.85
"""so often, and else no smaller than UNREMARKABLE, if that can be afforded."""
SMALL_BYTES = 1 << 19
"""Of a call at exactly the sizes that are named."""


class Space:
    """One `beyond` range, and what a call in it may cost."""

    def __init__(self, beyond: Beyond, entry: Entry, most_bytes: int) -> None:
        self.entry, self.same, self._most, self._most_bytes = entry, beyond.same, beyond.most, most_bytes
        sizes = {name: (size, size) if isinstance(size, int) else size for name, size in beyond.dims.items()}
        self.lowest = {name: low for name, (low, _) in sizes.items()}
        self.ranges = {name: ends for name, ends in sizes.items() if ends[0] < ends[1]}
        self.measures = self._measures()
        self._tensors = [self._growth(tensor) for tensor in (*entry.inputs, *entry.outputs)]
        self.reach = {names: self._furthest(names) for names in self.measures}
        """The largest that each measure gets."""

    def _growth(self, tensor: Tensor) -> tuple[list[str], int]:
        """The dims that a tensor grows with, and its bytes where each of them is 1."""
        names = [self.same.get(item, item) for item in tensor.shape if isinstance(item, str)]
        fixed = [item for item in tensor.shape if isinstance(item, int)]
        return names, math.prod(fixed) * DTYPES[tensor.dtype].itemsize

    def _measures(self) -> tuple[Names, ...]:
        """Every dim that varies, every product of two, and of those of each tensor."""
        varying = [name for name in self.entry.dims if self.same.get(name, name) in self.ranges]
        tensors = (*self.entry.inputs, *self.entry.outputs)
        shapes = [tuple(name for name in varying if name in tensor.shape) for tensor in tensors]
        singles = [(name,) for name in self.ranges]
        return tuple(dict.fromkeys([*singles, *combinations(varying, 2), *filter(None, shapes)]))

    def whole(self, dims: Dims) -> Dims:
        """With the dims that are as large as others, in the entry's order."""
        return {name: dims[self.same.get(name, name)] for name in self.entry.dims}

    def affordable(self, dims: Dims) -> bool:
        """Whether a call of this size may be made."""
        return self._cost(dims) <= self._most_bytes and math.prod(dims.values()) <= self._most

    def _cost(self, dims: Dims) -> int:
        """Bytes of all tensors."""
        return sum(math.prod([dims[name] for name in names], start=size) for names, size in self._tensors)

    def _furthest(self, names: Names) -> int:
        """The largest that a measure gets, by pushing one of its dims after the other as far as it goes."""
        most = 0
        for order in permutations(dict.fromkeys(self.same.get(name, name) for name in names)):
            dims = dict(self.lowest)
            for name in order:
                dims[name] = self.furthest(dims, name)
            most = max(most, math.prod(self.whole(dims)[name] for name in names))
        return most

    def furthest(self, dims: Dims, name: str) -> int:
        """The largest affordable size of one dim beside the others as they are."""
        low, high = dims[name], self.ranges[name][1]
        if self.affordable({**dims, name: high}):
            return high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.affordable({**dims, name: middle}) else (low, middle - 1)
        return low

    def filled(self, goal: Dims, rng: np.random.Generator, named: Sequence[int]) -> Dims | None:
        """A call with these sizes and others drawn; None where there is none that is affordable."""
        dims = {**self.lowest, **goal}
        if not self.affordable(dims):
            return None
        others = [name for name in self.ranges if name not in goal]
        for place in rng.permutation(len(others)).tolist():
            dims[others[place]] = self._drawn(dims, others[place], rng, named)
        return self.whole(dims)

    def small(self, goal: Dims) -> Dims | None:
        """A small call with as many of these sizes as it can have, in their order; None where it can have none."""
        dims = {name: min(max(low, UNREMARKABLE), self._highest(name)) for name, low in self.lowest.items()}
        had = False
        for name, size in goal.items():
            able = {**dims, name: size}
            low, high = self.ranges.get(name, (1, 0))
            if low <= size <= high and self._cost(able) <= SMALL_BYTES and self.affordable(able):
                dims, had = able, True
        return self.whole(dims) if had else None

    def split(self, names: Sequence[str], product: int, rng: np.random.Generator) -> Dims | None:
        """Sizes of these dims with about that product, all but the last anywhere they can be; None without any."""
        dims: dict[str, int] = {}
        for number, name in enumerate(names[:-1]):
            low, high = self._unremarkable(name)
            rest = math.prod(self.ranges[other][1] for other in names[number + 1 :])
            low, high = max(low, -(-product // rest)), min(high, product)
            if low > high:
                return None
            dims[name] = log_uniform(low, high, rng)
            product = -(-product // dims[name])
        low, high = self.ranges[names[0]] if len(names) == 1 else self._unremarkable(names[-1])
        dims[names[-1]] = max(low, product)
        return dims if product <= high else None

    def _unremarkable(self, name: str) -> tuple[int, int]:
        """The range of one dim of a product, which is no tiny one unless all of the range is."""
        low, high = self.ranges[name]
        return min(max(low, UNREMARKABLE), high), high

    def _highest(self, name: str) -> int:
        return self.ranges[name][1] if name in self.ranges else self.lowest[name]

    def _drawn(self, dims: Dims, name: str, rng: np.random.Generator, named: Sequence[int]) -> int:
        """A size of one dim: mostly odd and anywhere, by its logarithm; one in four beside a size in the sources."""
        low, high = self.ranges[name][0], self.furthest(dims, name)
        near = named[bisect_left(named, low) : bisect_right(named, high)]
        if near and rng.random() < NEAR_RATIO:
            size = near[int(rng.integers(len(near)))] + (-1, 1, 1, -1, 0)[int(rng.integers(5))]
            return min(max(size, low), high)
        least = math.isqrt(low * high) if rng.random() < LARGE_RATIO else max(low, UNREMARKABLE)
        return _odd(log_uniform(min(least, high), high, rng), low, high)


def _odd(size: int, low: int, high: int) -> int:
    """The size or a neighbour that is odd, where there is one."""
    return size if size % 2 else size + 1 if size < high else max(low, size - 1)


def log_uniform(low: int, high: int, rng: np.random.Generator) -> int:
    """A whole number from low to high, by its logarithm."""
    return min(high, max(low, int(low * (max(high, 1) / max(low, 1)) ** rng.random())))
