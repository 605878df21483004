"""Record linear on the GPU here: times beside stock cuBLAS, and bits at many numbers of rows, for every shape tabled.

    python tests/kernels/operators/linear/record.py --out DIR [--seconds 90]

Prints a line for each shape and a summary; everything as JSON under DIR.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from timing import Replay, least_us, medians_us, operands

from kernelbraid.kernels.runtime import linear_library
from kernelbraid.kernels.runtime.linear import linear, prepare, way_of
from kernelbraid.kernels.runtime.linear_choice import table

ROWS = (1, 16, 64, 128, 256, 512, 2048, 8192)
BIT_ROWS = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256, 257, 384),
    *(500, 511, 512, 513, 1000, 1024, 1025, 2047, 2048, 2049, 4096, 8191, 8192),
)
ROUNDS = 7


def times_of(outs: int, width: int) -> list[dict[str, Any]]:
    """A cell for each number of rows: stock and linear in turns."""
    x, weights = operands(max(ROWS), outs, width)
    y = torch.empty(max(ROWS), outs, device="cuda", dtype=torch.bfloat16)
    cells = []
    for rows in ROWS:
        few, out, call_us = x[:rows], y[:rows], least_us(rows, outs, width)
        stock = Replay(lambda weight, few=few, out=out: torch.mm(few, weight.t(), out=out), weights, call_us)
        ours = Replay(lambda weight, few=few, out=out: linear(few, weight, out), weights, call_us)
        stock_us, linear_us = medians_us((stock, ours), ROUNDS if call_us < 2000 else 3)
        name, _ = way_of(outs, width, rows)
        cells.append({"outs": outs, "width": width, "rows": rows, "stock_us": stock_us, "linear_us": linear_us})
        cells[-1] |= {"ratio": stock_us / linear_us, "kernel": name}
    return cells


def bits_of(outs: int, width: int) -> dict[str, Any]:
    """How many elements differ between a row alone, in any batch of `BIT_ROWS`, and among all."""
    x, weights = operands(max(BIT_ROWS), outs, width)
    whole = torch.empty(max(BIT_ROWS), outs, device="cuda", dtype=torch.bfloat16)
    linear(x, weights[0], whole)
    out, differing = torch.empty_like(whole), {}
    for rows in BIT_ROWS:
        first = (max(BIT_ROWS) - rows) // 2
        out[:rows].fill_(float("nan"))
        linear(x[first : first + rows], weights[0], out[:rows])
        same = whole[first : first + rows].view(torch.int16)
        differing[rows] = int((out[:rows].view(torch.int16) != same).sum())
    return {"outs": outs, "width": width, "differing": differing}


def _geometric(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(cells: list[dict[str, Any]]) -> str:
    """Stock over linear: mean and worst of each number of rows, and of all."""
    lines = []
    for rows in (*ROWS, 0):
        ratios = [cell["ratio"] for cell in cells if rows in (0, cell["rows"])]
        if ratios:
            lines.append(f"rows {rows or 'all'}: x{_geometric(ratios):.3f}, worst x{min(ratios):.3f} of {len(ratios)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args()
    begun, cells, bits = time.monotonic(), [], []
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cublaslt": linear_library.version()}
    for outs, width in sorted(table().shapes, key=lambda shape: shape[0] * shape[1]):
        if time.monotonic() - begun > options.seconds:
            print(f"out of time before {width} -> {outs}")
            break
        prepare(outs, width)
        bits.append(bits_of(outs, width))
        found = times_of(outs, width)
        cells += found
        shown = "  ".join(f"{cell['rows']}: {cell['linear_us']:.1f} x{cell['ratio']:.2f}" for cell in found)
        print(f"{width} -> {outs} differing {sum(bits[-1]['differing'].values())} | {shown}", flush=True)
        options.out.joinpath("linear.json").write_text(json.dumps(facts | {"cells": cells, "bits": bits}))
        torch.cuda.empty_cache()
    print(summary(cells))


if __name__ == "__main__":
    main()
