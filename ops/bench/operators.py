"""Every operator beside what others do for it: torch eager and compiled, SDPA, cuBLAS, flash-attn where installed."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kernelbraid.kernels.operators.operator import operator_names, operator_targets
from kernelbraid.ops.bench.arm import Line, lines_of

TIMEOUT_S = 540.0
MODULE = "kernelbraid.ops.bench.operator_times"
PAPERS: Mapping[str, Mapping[str, float]] = {"rms_norm": {"full": 10.3}, "rope": {"full": 18.0, "decode": 2.9}}
"""Times faster than a baseline that it does not name, by operator and path, as the paper publishes them."""

Result = Mapping[str, Any]


def measurable() -> tuple[str, ...]:
    """The packaged operators with a GPU target."""
    return tuple(name for name in operator_names() if "triton" in operator_targets(name))


def bench_operators(operators: Sequence[str], compiled: bool = True) -> Result:
    """Microseconds by operator, cell and arm, in one process on this machine's GPU; and what did not run.

    Where an operator ends the process, another one goes on with those behind it.
    """
    flags = () if compiled else ("--no-compile",)
    command = f"kernelbraid bench operators --operators {','.join(operators)}"
    command += f" --{'' if compiled else 'no-'}compile --json"
    return {"command": command, **summary(list(every_line(flags, operators, TIMEOUT_S)))}


def every_line(
    flags: Sequence[str], operators: Sequence[str], timeout_s: float, module: str = MODULE
) -> Iterator[Line]:
    """What the processes printed: each begins behind the operator that the one before ended with."""
    left, until_s = list(operators), time.monotonic() + timeout_s
    while left and (remaining_s := until_s - time.monotonic()) > 0:
        lines = lines_of(module, [*flags, *left], remaining_s)
        done = sum("done" in line for line in lines)
        by = left[min(done, len(left) - 1)]
        yield from ({"operator": by, **line} if "ended" in line else line for line in lines)
        left = left[done + 1 :]


def summary(lines: Sequence[Line]) -> Result:
    """The processes' lines, put together.

    `times_faster` is the geometric mean of an arm's time over ours, `times_faster_by_path` that of each path. Of what
    memory bounds, `of_copy` is the bytes that ours moves a second over those of a large copy, `of_same_copy` over those
    of a copy of as many bytes; `large` names the cells of 256 MiB and more.
    """
    cells = [line for line in lines if "us" in line]
    environment: Mapping[str, Any] = next((line["environment"] for line in lines if "environment" in line), {})
    clocks = [line["sm_mhz"] for line in cells if line.get("sm_mhz")]
    copied = [line for line in cells if {"ours", "copy"} <= line["us"].keys() and "copied_bytes_per_s" in environment]
    of_copy = [1e6 * line["bytes"] / line["us"]["ours"] / environment["copied_bytes_per_s"] for line in copied]
    of_same_copy = [line["us"]["copy"] / line["us"]["ours"] for line in copied]
    us: Mapping[str, Mapping[str, Mapping[str, float]]] = _by_cell(cells, [line["us"] for line in cells])
    paths = {path: [line for line in cells if line["path"] == path] for path in ("full", "decode")}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment,
        "sm_mhz": [min(clocks), max(clocks)] if clocks else None,
        "us": us,
        "of_copy": _by_cell(copied, [round(share, 3) for share in of_copy]),
        "of_same_copy": _by_cell(copied, [round(share, 3) for share in of_same_copy]),
        "large": {name: [line["cell"] for line in copied if line["large"] and line["operator"] == name] for name in us},
        "times_faster": {name: times_faster(list(of.values())) for name, of in us.items()},
        "times_faster_by_path": {
            name: {
                path: times_faster([line["us"] for line in of if line["operator"] == name])
                for path, of in paths.items()
            }
            for name in us
        },
        "failed": [line for line in lines if line.get("failed") or "ended" in line],
    }


def _by_cell(cells: Sequence[Line], values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line, value in zip(cells, values, strict=True):
        found.setdefault(line["operator"], {})[line["cell"]] = value
    return found


def times_faster(cells: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """For each other arm, the geometric mean of its time over ours in the cells that both ran."""
    others = {arm for cell in cells for arm in cell} - {"ours"}
    shared = {arm: [cell[arm] / cell["ours"] for cell in cells if arm in cell and "ours" in cell] for arm in others}
    return {arm: statistics.geometric_mean(ratios) for arm, ratios in sorted(shared.items()) if ratios}


def overview(result: Result) -> Iterator[str]:
    """A row for each operator that memory bounds: shares in its large cells, and others' time over ours by path."""
    columns = ("large copy", "copy as large", "eager", "eager, decode", "compiled", "compiled, decode", "the paper's")
    yield "| | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, cells in result["large"].items():
        if not cells:
            continue
        shares = [[result[key][name][cell] for cell in cells] for key in ("of_copy", "of_same_copy")]
        row = [f"{min(each):.2f} to {max(each):.2f}" for each in shares]
        of_path = result["times_faster_by_path"][name]
        for arm in ("eager", "compiled"):
            row += [f"{of_path[path][arm]:.1f}x" if arm in of_path[path] else "" for path in ("full", "decode")]
        row.append(", ".join(f"{ratio}x" for ratio in PAPERS.get(name, {}).values()))
        yield f"| {name} | " + " | ".join(row) + " |"


def table(result: Result) -> Iterator[str]:
    """A table for each operator: microseconds, and beneath it how many times faster ours is on the geometric mean.

    `of copy` is the share of a large copy's bandwidth, `of same copy` of that of a copy of as many bytes.
    """
    for name, of_cells in result["us"].items():
        arms = list(dict.fromkeys(arm for cell in of_cells.values() for arm in cell))
        shares = [result[key][name] for key in ("of_copy", "of_same_copy") if name in result[key]]
        columns = [*arms, *("of copy", "of same copy")[: len(shares)]]
        yield f"| {name} | " + " | ".join(columns) + " |"
        yield "|---" * (len(columns) + 1) + "|"
        for cell, us in of_cells.items():
            row = [
                f"{of[key]:.2f}" if key in of else ""
                for of, key in [*((us, arm) for arm in arms), *((of, cell) for of in shares)]
            ]
            yield f"| {cell} | " + " | ".join(row) + " |"
        yield from _ratios(result, name, arms, len(shares))
        yield ""


def _ratios(result: Result, name: str, arms: Sequence[str], more: int) -> Iterator[str]:
    """Others' time over ours, in all cells and on each path, and what the paper says of its own."""
    rows = {"over ours": result["times_faster"][name]}
    rows |= {f"over ours, {path}": ratios for path, ratios in result["times_faster_by_path"][name].items() if ratios}
    for label, ratios in rows.items():
        row = [f"{ratios[arm]:.2f}" if arm in ratios else "" for arm in arms]
        yield f"| {label} | " + " | ".join([*row, *[""] * more]) + " |"
    for path, ratio in PAPERS.get(name, {}).items():
        yield (
            f"| the paper's, {path}, over a baseline that it does not name | "
            + " | ".join([f"{ratio}", *[""] * (len(arms) + more - 1)])
            + " |"
        )
