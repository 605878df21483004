"""Which kernel multiplies how many rows: read from a table of measurements, else by rule. Pure.

A weight's shape has one order of sums (`chunk_steps`), and for each number of rows a way that keeps it. Ways differ in
time alone: where a table's device or library is another, rules take the place of its ways and no bit changes. That
this holds on a device is checked there when a shape is prepared.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal

from kernelbraid.kernels.runtime.linear_tiles import MOST_SHARED_BYTES, STEP, Tile, TileError, stages_that_fit

TABLE = Path(__file__).parent / "linear_h200.json"
MOST_ROWS = 8192
"""More rows are multiplied in blocks of so many."""
HALF_BYTES = MOST_SHARED_BYTES // 2 - 2048
"""Shared memory of a block that leaves room for another."""
Origin = Literal["table", "rule"]
TILE_FIELDS = ("warpgroups", "columns", "stages", "swapped", "split", "shared", "sums")


class TableError(ValueError):
    """A table that cannot be read: the message names the shape and what is wrong."""


@dataclass(frozen=True, slots=True)
class Way:
    """Up to so many rows: by our kernel with a tile, or by an algorithm of cuBLASLt. Exactly one of the two."""

    upto_rows: int
    tile: Tile | None = None
    algorithm: str | None = None

    def __post_init__(self) -> None:
        if (self.tile is None) == (self.algorithm is None):
            raise TableError(f"a way is by a tile or by an algorithm, not {self}")

    @property
    def name(self) -> str:
        """For logs and counters."""
        if self.tile is None:
            return f"cublaslt:{(self.algorithm or '')[:24]}"
        kind = f"split{self.tile.split}" if self.tile.split > 1 else "sums" if self.tile.sums else "chain"
        return f"chunked:{self.tile.tokens}x{self.tile.outs}:{kind}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """How a weight [outs, width] is multiplied. So many steps of 64 products make one chain; 0: the whole sum does."""

    outs: int
    width: int
    chunk_steps: int
    ways: tuple[Way, ...]
    origin: Origin

    def __post_init__(self) -> None:
        bounds = [way.upto_rows for way in self.ways]
        if bounds != sorted(set(bounds)) or bounds[-1:] != [MOST_ROWS]:
            raise TableError(f"{self.width} -> {self.outs}: ways must rise up to {MOST_ROWS} rows, not {bounds}")

    def way(self, rows: int) -> Way:
        """The way for 1 to `MOST_ROWS` rows."""
        return next(way for way in self.ways if rows <= way.upto_rows)

    def ranges(self) -> Iterator[tuple[int, Way]]:
        """The fewest rows of each way, and the way."""
        fewest = 1
        for way in self.ways:
            yield fewest, way
            fewest = way.upto_rows + 1


@dataclass(frozen=True, slots=True)
class Table:
    """Measured on one device with one version of cuBLASLt."""

    device: str
    library: int
    shapes: Mapping[tuple[int, int], Chosen]

    def choose(self, outs: int, width: int, device: str, library: int | None) -> Chosen:
        """The measured ways on the table's device with its library, else rules that keep the shape's order of sums."""
        found = self.shapes.get((outs, width))
        if found is None:
            return by_rule(outs, width, 0)
        if device == self.device and (library == self.library or not any(way.algorithm for way in found.ways)):
            return found
        return by_rule(outs, width, found.chunk_steps)


def by_rule(outs: int, width: int, chunk_steps: int) -> Chosen:
    """Ways by our own kernel alone, for shapes and devices that nobody measured."""
    chunks = ceil(ceil(width / STEP) / chunk_steps) if chunk_steps else 1
    few = ((8, 1, 8), (16, 1, 16), (32, 1, 32), (64, 1, 64), (256, 2, 128))
    small = (Way(rows, tile=_few_rows(warpgroups, columns, chunks)) for rows, warpgroups, columns in few)
    large = Tile(2, 192 if chunks > 1 else 256, 5 if chunks > 1 else 4, swapped=False, shared=2, sums=chunks > 1)
    middle = Tile(2, 96, 5, swapped=False, sums=chunks > 1)
    return Chosen(outs, width, chunk_steps, (*small, Way(1024, tile=middle), Way(MOST_ROWS, tile=large)), "rule")


def _few_rows(warpgroups: int, columns: int, chunks: int) -> Tile:
    """Weights are the first operand; chunks lie side by side where a cluster holds them, else one after the other."""
    split = chunks if chunks <= 8 else 1
    tile = Tile(warpgroups, columns, 2, swapped=True, split=split, sums=chunks > 1 and split == 1)
    return stages_that_fit(tile, HALF_BYTES)


@cache
def table() -> Table:
    """The table that is packaged. Raises TableError."""
    return parsed(TABLE.read_text("utf-8"))


def parsed(text: str) -> Table:
    """A table from JSON. Raises TableError."""
    try:
        found = json.loads(text)
        shapes = (_shape(shape) for shape in found["shapes"])
        return Table(str(found["device"]), int(found["library"]), {(each.outs, each.width): each for each in shapes})
    except (KeyError, TypeError, TileError, json.JSONDecodeError) as error:
        raise TableError(f"not a table of linear's ways: {error!r}") from error


def written(measured: Table) -> str:
    """JSON of a table, one way a line."""
    blocks = []
    for chosen in measured.shapes.values():
        ways = ",\n".join("      " + json.dumps(_written_way(way)) for way in chosen.ways)
        head = f'"outs": {chosen.outs}, "width": {chosen.width}, "chunk_steps": {chosen.chunk_steps}'
        blocks.append(f'    {{{head}, "ways": [\n{ways}\n    ]}}')
    shapes = ",\n".join(blocks)
    head = f'"device": {json.dumps(measured.device)}, "library": {measured.library}'
    return f'{{\n  {head},\n  "shapes": [\n{shapes}\n  ]\n}}\n'


def _shape(found: Mapping[str, object]) -> Chosen:
    ways = found["ways"]
    if not isinstance(ways, list):
        raise TypeError("ways is no list")
    outs, width, chunk_steps = (_whole(found[name]) for name in ("outs", "width", "chunk_steps"))
    return Chosen(outs, width, chunk_steps, tuple(_way(way) for way in ways), "table")


def _way(found: Mapping[str, object]) -> Way:
    algorithm, tile = found.get("algorithm"), found.get("tile")
    if isinstance(tile, dict):
        return Way(_whole(found["rows"]), tile=Tile(**{name: tile[name] for name in TILE_FIELDS}))
    return Way(_whole(found["rows"]), algorithm=None if algorithm is None else str(algorithm))


def _written_way(way: Way) -> dict[str, object]:
    if way.tile is None:
        return {"rows": way.upto_rows, "algorithm": way.algorithm}
    return {"rows": way.upto_rows, "tile": {name: getattr(way.tile, name) for name in TILE_FIELDS}}


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
