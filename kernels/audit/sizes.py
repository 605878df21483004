"""Hidden shapes at the sizes that a candidate's own sources name, and past every declared check.

A kernel changes its way where a size passes a number in its source. Those numbers cut every *measure* of a call (a dim,
a product of two, a tensor's elements) into stretches; in a stretch that no declared check lies in, anything may
happen unseen. Shapes are drawn from the operator's `beyond` ranges for as many such stretches as a budget has room
for, the ones past all checks first, with odd and otherwise unremarkable sizes of everything else. What no shape can
reach is said. Pure: the same operator, sources and seed give the same shapes.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, zip_longest
from typing import Literal

import numpy as np

from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.audit.literals import literals
from kernelbraid.kernels.audit.spaces import Dims, Names, Space, log_uniform
from kernelbraid.kernels.operators.operator import CPU, Beyond, Entry, Operator, Sources

Kind = Literal["last", "named", "past", "between", "at"]
"""Past all declared checks: from the largest named size on, from another one on, or from any other; between two sizes;
at a named size."""

TRIES: Mapping[Kind, int] = {"last": 8, "named": 4, "past": 2, "between": 1, "at": 1}
"""Shapes that are drawn for each stretch of a kind, to choose from."""
MOST_DRAWS = 96
"""Shapes that are drawn to choose from, for one pair."""
MOST_NAMED = 200
"""Sizes that calls are aimed at; of more, so many are drawn."""
MOST_UNREACHED = 6
"""Sizes out of reach that are told by their number."""
AGAIN_RATIO = 0.6
"""What another stretch of a measure is worth for each that has a shape already."""
LARGEST_SIZE = 1 << 40
"""No tensor has so many elements."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the shapes of one audit may come to."""

    shapes: int
    """For each pair of a full and a decode entry,"""
    most_shapes: int
    """and so many of all pairs, as long as a stretch past all checks that begins at a named size is without one."""
    points: int
    """Small shapes of all pairs, each at named sizes in as many dims as can be."""
    shape_bytes: int
    """Inputs and outputs of one call."""
    bytes: int
    """Of all of them."""

    def of_one(self, pairs: int, left_bytes: int) -> "Budget":
        """The share of one of so many pairs."""
        most_shapes, points = max(self.shapes, self.most_shapes // pairs), -(-self.points // pairs)
        return replace(self, most_shapes=most_shapes, points=points, bytes=left_bytes)


BUDGETS: Mapping[bool, Budget] = {
    True: Budget(shapes=3, most_shapes=10, points=6, shape_bytes=3 << 19, bytes=10 << 20),
    False: Budget(shapes=2, most_shapes=6, points=1, shape_bytes=8 << 20, bytes=24 << 20),
}
"""By whether the target is the CPU: on a device each shape may take a kernel of its own to be compiled."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A full-path call that is due."""

    full: Entry
    decode: Entry
    dims: Dims
    seed: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """The shapes of one audit, and the sizes named in its sources that no shape is beyond."""

    seed: int
    shapes: tuple[Shape, ...]
    unreached: tuple[int, ...]
    """By no measure, however large a call may be made here."""
    products_only: tuple[int, ...]
    """By products of dims, but by no dim."""
    left_out: int = 0
    """Sizes beyond MOST_NAMED, by chance: no call was aimed at them."""

    def __str__(self) -> str:
        """The evidence: enough to draw the shapes again, and what they leave open."""
        parts = [f"sizes of seed {self.seed}", *self._by_entry()]
        if self.unreached:
            parts.append(f"unreached: {_told(self.unreached)}")
        if self.products_only:
            parts.append(f"reached by products of dims alone: {_told(self.products_only)}")
        if self.left_out:
            parts.append(f"{self.left_out} more sizes are named than calls are aimed at")
        return "; ".join(parts)

    def _by_entry(self) -> Iterator[str]:
        for full, alike in groupby(self.shapes, key=lambda shape: shape.full):
            calls = ", ".join("x".join(map(str, shape.dims.values())) for shape in alike)
            yield f"{full.symbol} ({' x '.join(full.dims)}) {calls}"


def _told(sizes: Sequence[int]) -> str:
    more = len(sizes) - MOST_UNREACHED
    return ", ".join(map(str, sizes[:MOST_UNREACHED])) + (f" and {more} more" if more > 0 else "")


class Sizes:
    """Draws the shapes of one operator's audits; what does not depend on a source is worked out once."""

    def __init__(self, operator: Operator) -> None:
        self._budget = BUDGETS[operator.target == CPU]
        self._pairs = [_Pair(operator, beyond) for beyond in _by_pair(operator)]

    def drawn(self, sources: Sources, seed: int) -> Drawn:
        """The shapes that an audit of these sources has beside the declared ones."""
        return self.drawn_at(literals(sources), seed)

    def drawn_at(self, sizes: Iterable[int], seed: int) -> Drawn:
        """The same, for these sizes."""
        rng = np.random.default_rng(seed)
        every = sorted(size for size in set(sizes) if size < LARGEST_SIZE)
        reach = max((most for pair in self._pairs for most in pair.reach.values()), default=0)
        within = [size for size in every if size < reach]
        some = rng.permutation(len(within))[:MOST_NAMED].tolist()
        named = sorted(within[place] for place in some)
        shapes: list[Shape] = []
        for number, pair in enumerate(self._pairs):
            left = self._budget.bytes - sum(_bytes(shape.full, shape.dims) for shape in shapes)
            budget = self._budget.of_one(len(self._pairs), left // (len(self._pairs) - number))
            shapes += _chosen(pair, named, budget, rng)
        return Drawn(seed, tuple(shapes), *_beyond_reach(every, self._pairs), left_out=len(within) - len(named))


def _bytes(entry: Entry, dims: Dims) -> int:
    tensors = (*entry.inputs, *entry.outputs)
    return sum(math.prod(tensor.resolve(dims)) * DTYPES[tensor.dtype].itemsize for tensor in tensors)


def _beyond_reach(named: Sequence[int], pairs: Sequence["_Pair"]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes that no measure passes, and those that only products do."""
    reach = [(len(names), most) for pair in pairs for names, most in pair.reach.items()]
    by_dim = max((most for count, most in reach if count == 1), default=0)
    by_any = max((most for _, most in reach), default=0)
    unreached = tuple(size for size in named if size >= by_any)
    return unreached, tuple(size for size in named if by_dim <= size < by_any)


def _by_pair(operator: Operator) -> Iterator[list[Beyond]]:
    """The ranges of each pair of entries; its hidden ranges where it declares none further."""
    hidden = [Beyond(each.full, each.decode, each.dims, {}, math.inf) for each in operator.hidden]
    every = (*operator.beyond, *hidden)
    for ends in dict.fromkeys((each.full, each.decode) for each in every):
        own = [each for each in every if (each.full, each.decode) == ends]
        yield [each for each in own if each in operator.beyond] or own


@dataclass(frozen=True, slots=True)
class _Target:
    """A stretch of one measure: from `low` to `high`, both included."""

    names: Names
    low: int
    high: int
    kind: Kind

    @property
    def weight(self) -> int:
        """What it is worth to have a shape here."""
        match self.kind:
            case "last":
                return 400 if len(self.names) == 1 else 200
            case "named":
                return 200 if len(self.names) == 1 else 100
            case "past":
                return 100 if len(self.names) == 1 else 25
            case "between":
                return 10 if len(self.names) == 1 else 3
            case "at":
                return 4

    def holds(self, dims: Dims) -> bool:
        """Whether a shape lies in it."""
        return self.low <= _measured(self.names, dims) <= self.high


class _Pair:
    """A full entry and its decode entry: what may be drawn for them, and what the declared checks cover."""

    def __init__(self, operator: Operator, beyond: Sequence[Beyond]) -> None:
        ends = (beyond[0].full, beyond[0].decode)
        self.full, self.decode = map(operator.entry, ends)
        most_bytes = BUDGETS[operator.target == CPU].shape_bytes
        self.spaces = [Space(each, self.full, most_bytes) for each in beyond]
        self.checks = [check.dims for check in operator.checks if (check.full, check.decode) == ends]
        self.reach: dict[Names, int] = {}
        for space in self.spaces:
            for names in space.measures:
                self.reach[names] = max(self.reach.get(names, 0), space.reach[names])

    def targets(self, named: Sequence[int]) -> list[_Target]:
        """All stretches without a declared check, the weightiest first."""
        found = [target for names in self.reach for target in self._targets(names, named)]
        return sorted(found, key=lambda target: -target.weight)

    def _targets(self, names: Names, named: Sequence[int]) -> Iterator[_Target]:
        seen = sorted(_measured(names, dims) for dims in self.checks)
        reach, most_seen = self.reach[names], max(seen, default=0)
        low = 1
        for cut in [cut for cut in _cuts(named, most_seen, reach, len(names) == 1) if cut <= reach] + [reach + 1]:
            if low < cut and bisect_left(seen, low) == bisect_left(seen, cut):
                yield _Target(names, low, cut - 1, self._kind(low, cut, named) if low > most_seen else "between")
            is_named = cut in named
            if is_named and len(names) == 1 and cut <= reach and cut not in seen:
                yield _Target(names, cut, cut, "at")
            low = cut + 1 if is_named else cut

    @staticmethod
    def _kind(low: int, cut: int, named: Sequence[int]) -> Kind:
        """Of a stretch past all checks."""
        if low - 1 not in named:
            return "past"
        return "named" if cut in named else "last"

    def shape(self, target: _Target, rng: np.random.Generator, named: Sequence[int]) -> Dims | None:
        """A call that lies in the target, if one was found."""
        able = [space for space in self.spaces if space.reach.get(target.names, 0) >= target.low]
        space = able[int(rng.integers(len(able)))]
        goal = _goal(space, target, rng)
        dims = None if goal is None else space.filled(goal, rng, named)
        return dims if dims is not None and target.holds(dims) else None


def _measured(names: Names, dims: Dims) -> int:
    return math.prod([dims[name] for name in names])


def _chosen(pair: _Pair, named: Sequence[int], budget: Budget, rng: np.random.Generator) -> Iterator[Shape]:
    """As many as the budget has room for, each time the one that adds most, and then the small ones."""
    targets, left = pair.targets(named), budget.bytes
    choice = [(dims, _bytes(pair.full, dims), _held(dims, targets)) for dims in _choice(pair, targets, named, rng)]
    missing = dict(enumerate(targets))
    taken: Counter[Names] = Counter()
    for count in range(budget.most_shapes):
        wanted = count < budget.shapes or any(target.kind in ("last", "named") for target in missing.values())
        adds = [(_added(held, missing, taken), -place) for place, (_, size, held) in enumerate(choice) if size <= left]
        most, number = max(adds, default=(0.0, 0))
        if most <= 0 or not wanted:
            break
        dims, size, held = choice[-number]
        left -= size
        taken.update({missing.pop(place).names for place in held if place in missing})
        yield Shape(pair.full, pair.decode, dims, int(rng.integers(1 << 63)))
    points = [target for target in missing.values() if target.kind == "at"]
    yield from islice(_points(pair, points, rng), budget.points)


def _added(held: Sequence[int], missing: Mapping[int, _Target], taken: Counter[Names]) -> float:
    """What a shape is worth that lies in these targets: of one measure's each is worth less than the one before."""
    due = (missing[place] for place in held if place in missing)
    return sum(target.weight * AGAIN_RATIO ** taken[target.names] for target in due)


def _points(pair: _Pair, points: Sequence[_Target], rng: np.random.Generator) -> Iterator[Shape]:
    """Small calls that lie at named sizes in as many dims as they can."""
    shuffled = [points[place] for place in rng.permutation(len(points)).tolist()]
    by_dim: dict[str, list[int]] = {}
    for point in shuffled:
        by_dim.setdefault(point.names[0], []).append(point.low)
    rows = zip_longest(*by_dim.values())
    due = [{name: size for name, size in zip(by_dim, sizes, strict=True) if size is not None} for sizes in rows]
    while due:
        goal = due.pop(0)
        dims = next(filter(None, (space.small(goal) for space in pair.spaces)), None)
        if dims is not None:
            yield Shape(pair.full, pair.decode, dims, int(rng.integers(1 << 63)))
        if len(goal) > 1:
            due += [{name: size} for name, size in goal.items() if dims is None or dims[name] != size]


def _held(dims: Dims, targets: Sequence[_Target]) -> list[int]:
    """The targets that a shape lies in."""
    measured = {names: _measured(names, dims) for names in {target.names for target in targets}}
    return [place for place, target in enumerate(targets) if target.low <= measured[target.names] <= target.high]


def _choice(pair: _Pair, targets: Sequence[_Target], named: Sequence[int], rng: np.random.Generator) -> Iterator[Dims]:
    """Shapes for the targets, several for those past all checks."""
    wanted = [target for target in targets for _ in range(TRIES[target.kind])]
    drawn = (pair.shape(target, rng, named) for target in wanted[:MOST_DRAWS])
    yield from (dims for dims in drawn if dims is not None)


def _cuts(named: Sequence[int], most_seen: int, reach: int, is_dim: bool) -> list[int]:
    """Where a measure is cut: at the named sizes, past the largest check, and a dim once more on the way to its end."""
    last = max([most_seen, *(size for size in named if size < reach)])
    middle = math.isqrt(max(1, last * reach))
    return sorted({*named, most_seen + 1, *([middle] if is_dim and last + 1 < middle < reach else [])})


def _goal(space: Space, target: _Target, rng: np.random.Generator) -> Dims | None:
    """Sizes of the measure's dims whose product lies in the target, its ends being likely."""
    low, high = target.low, min(target.high, space.reach[target.names])
    wanted = (low, high, log_uniform(low, high, rng))[int(rng.integers(3))]
    names = list(dict.fromkeys(space.same.get(name, name) for name in target.names))
    if len(names) < len(target.names):
        wanted = math.isqrt(wanted - 1) + 1
    return space.split([names[place] for place in rng.permutation(len(names)).tolist()], wanted, rng)
