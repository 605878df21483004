"""Measure the ways of linear on the GPU here, and write the table from which they are chosen.

    python tests/kernels/operators/linear/measure.py --out DIR [--only 1536x8960 ...] [--seconds 60]

For each shape (outs x width) and number of rows every way with the bits of the shape's order of sums is timed; the
fastest are timed again in turns, beside stock cuBLAS. What is not measured keeps its place in the table. Writes
DIR/table.json, which belongs at kernels/runtime/linear_h200.json, and DIR/measured.json with every time.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from timing import Product, Replay, least_us, medians_us, operands

from kernelbraid.kernels.runtime import linear_chunked, linear_library
from kernelbraid.kernels.runtime.linear_choice import HALF_BYTES, MOST_ROWS, Chosen, Table, Way, by_rule, table, written
from kernelbraid.kernels.runtime.linear_tiles import MOST_SHARED_BYTES, STEP, Tile, TileError, stages_that_fit

BOUNDS = {8: 1, 16: 16, 32: 32, 64: 64, 128: 128, 256: 256, 512: 512, 1024: 1024, 2048: 2048, MOST_ROWS: MOST_ROWS}
"""Ways change at these numbers of rows, and are measured at those."""
CHUNKS = {(1536, 8960): 35}
"""Orders of sums other than one chain: where few multiprocessors would have to walk a long k."""
FINALISTS = 5
ROUNDS = 7
OFFERS = 24


@dataclass
class Trial:
    """One way at one number of rows: microseconds, and how it is called."""

    way: Way
    product: Product
    time_us: float


def own_tiles(rows: int, chunks: int) -> Iterator[Tile]:
    """Tiles worth a try; chunks lie side by side for few rows, one after the other in registers for many."""
    if rows <= 512:
        columns = next(c for c in (8, 16, 32, 64, 128) if rows <= c or c == 128)
        narrow = (16, 24, 32, 48, 96) if rows <= 64 else (48, 64, 96, 128, 192, 224, 256)
        shapes = [
            (1, columns, True),
            (2, columns, True),
            (2, 256, True),
            *((1 + (rows > 64), c, False) for c in narrow),
        ]
        for (warpgroups, wide, swapped), room in itertools.product(shapes, (HALF_BYTES, MOST_SHARED_BYTES)):
            yield from _fitted(Tile(warpgroups, wide, 2, swapped, split=chunks), room)
    if rows >= 256 or chunks == 1:
        wide = (48, 64, 96, 128, 160, 176, 192, 208, 224, 256)
        for warpgroups, columns, shared in itertools.product((1, 2), wide, (1, 2)):
            yield from _fitted(Tile(warpgroups, columns, 2, False, shared=shared, sums=chunks > 1), MOST_SHARED_BYTES)
        yield from _fitted(Tile(1, 128, 2, True, sums=chunks > 1), MOST_SHARED_BYTES)


def _fitted(tile: Tile, room_bytes: int) -> Iterator[Tile]:
    try:
        yield stages_that_fit(tile, room_bytes)
    except TileError:
        return


def ways(bound: int, outs: int, width: int, chunk_steps: int) -> list[Way]:
    """Ours and the library's, each once."""
    chunks = _chunks(width, chunk_steps)
    rows = BOUNDS[bound]
    offered = {
        offer.code
        for near in BOUNDS.values()
        if rows / 5 < near < rows * 5
        for offer in linear_library.offers(near, outs, width, OFFERS, chunks)
    }
    own = dict.fromkeys(own_tiles(rows, chunks)) if 2 * outs * width < 4e8 else {}
    return [*(Way(bound, tile=tile) for tile in own), *(Way(bound, algorithm=code) for code in sorted(offered))]


def _chunks(width: int, chunk_steps: int) -> int:
    steps = -(-width // STEP)
    return -(-steps // chunk_steps) if chunk_steps else 1


class Shape:
    """One weight shape on the device, with the bits that every way must have."""

    def __init__(self, outs: int, width: int, chunk_steps: int) -> None:
        self.outs, self.width, self.chunk_steps = outs, width, chunk_steps
        self.x, self.weights = operands(MOST_ROWS, outs, width)
        self.y = torch.empty(MOST_ROWS, outs, device="cuda", dtype=torch.bfloat16)
        last = by_rule(outs, width, chunk_steps).ways[-1]
        self.expected = torch.empty_like(self.y)
        _product(last, chunk_steps, self.x, self.expected)(self.weights[0])

    def trial(self, way: Way, rows: int) -> Trial | None:
        """Timed roughly; None for a way that cannot be called so, or has other bits."""
        x, y = self.x[:rows], self.y[:rows]
        product, call_us = _product(way, self.chunk_steps, x, y), least_us(rows, self.outs, self.width)
        try:
            y.fill_(float("nan"))
            product(self.weights[0])
            if not torch.equal(y.view(torch.int16), self.expected[:rows].view(torch.int16)):
                return None
            return Trial(way, product, medians_us([Replay(product, self.weights, call_us, 120.0)], 3)[0])
        except (TileError, linear_library.LibraryFailed, linear_chunked.LaunchFailed):
            return None

    def ranked(self, bound: int) -> tuple[list[Trial], float, int]:
        """The fastest ways, timed in turns, best first; stock's microseconds; how many were tried."""
        rows, candidates = BOUNDS[bound], ways(bound, self.outs, self.width, self.chunk_steps)
        found = sorted((t for way in candidates if (t := self.trial(way, rows))), key=lambda t: t.time_us)[:FINALISTS]
        x, y, call_us = self.x[:rows], self.y[:rows], least_us(rows, self.outs, self.width)
        arms = [Replay(lambda weight: torch.mm(x, weight.t(), out=y), self.weights, call_us)]
        arms += [Replay(each.product, self.weights, call_us) for each in found]
        stock_us, *times_us = medians_us(arms, ROUNDS if call_us < 2000 else 3)
        timed = [replace(each, time_us=time_us) for each, time_us in zip(found, times_us, strict=True)]
        return sorted(timed, key=lambda each: each.time_us), stock_us, len(candidates)


def _product(way: Way, chunk_steps: int, x: Any, y: Any) -> Product:
    if way.tile is not None:
        tile = way.tile
        return lambda weight: linear_chunked.run(tile, chunk_steps, x, weight, y)
    return lambda weight: linear_library.run(way.algorithm or "", x, weight, y)


def measured(outs: int, width: int, chunk_steps: int) -> tuple[Chosen, list[dict[str, Any]]]:
    """The shape's fastest ways, and every finalist's time."""
    shape, best, times = Shape(outs, width, chunk_steps), [], []
    for bound, rows in BOUNDS.items():
        ranked, stock_us, tried = shape.ranked(bound)
        best.append(ranked[0].way)
        finalists = [{"way": each.way.name, "us": each.time_us} for each in ranked]
        times.append({"outs": outs, "width": width, "rows": rows, "stock_us": stock_us, "finalists": finalists})
        shown = ", ".join(f"{each.way.name} {each.time_us:.2f}" for each in ranked)
        gain = stock_us / ranked[0].time_us
        print(f"{width} -> {outs} rows {rows}: stock {stock_us:.2f} us, x{gain:.2f}; of {tried}: {shown}", flush=True)
    return Chosen(outs, width, chunk_steps, tuple(best), "table"), times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    begun, shapes, times = time.monotonic(), dict(table().shapes), []
    wanted = [tuple(map(int, each.split("x"))) for each in options.only] or sorted(shapes, key=lambda s: s[0] * s[1])
    counts = {_chunks(width, CHUNKS.get((outs, width), 0)) for outs, width in wanted}
    linear_chunked.compile_ahead(t for rows in BOUNDS.values() for chunks in counts for t in own_tiles(rows, chunks))
    for outs, width in wanted:
        if time.monotonic() - begun > options.seconds:
            print(f"out of time before {width} -> {outs}")
            break
        shapes[outs, width], found = measured(outs, width, CHUNKS.get((outs, width), 0))
        times += found
        torch.cuda.empty_cache()
        library = linear_library.version()
        result = Table(torch.cuda.get_device_name(), library, shapes)
        options.out.joinpath("table.json").write_text(written(result))
        options.out.joinpath("measured.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main()
