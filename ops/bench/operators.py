"""Every operator beside what others do for it: torch eager and compiled, SDPA, cuBLAS, flash-attn where installed."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kernelbraid.kernels.operators.operator import operator_names, operator_targets
from kernelbraid.ops.bench.arm import Line, lines_of

TIMEOUT_S = 540.0
MODULE = "kernelbraid.ops.bench.operator_times"

Result = Mapping[str, Any]


def measurable() -> tuple[str, ...]:
    """The packaged operators with a GPU target."""
    return tuple(name for name in operator_names() if "triton" in operator_targets(name))


def bench_operators(operators: Sequence[str], compiled: bool = True) -> Result:
    """Microseconds by operator, cell and arm, all in one process on this machine's GPU; and what did not run."""
    words = [*(() if compiled else ("--no-compile",)), *operators]
    command = f"kernelbraid bench operators --operators {','.join(operators)}"
    command += f" --{'' if compiled else 'no-'}compile --json"
    return {"command": command, **summary(lines_of(MODULE, words, TIMEOUT_S))}


def summary(lines: Sequence[Line]) -> Result:
    """The process's lines, put together.

    `times_faster` is the geometric mean of an arm's time over ours. `of_copy` is, of what memory bounds, the bytes that
    ours moves a second over those of a large copy.
    """
    cells = [line for line in lines if "us" in line]
    environment: Mapping[str, Any] = next((line["environment"] for line in lines if "environment" in line), {})
    us: dict[str, dict[str, Mapping[str, float]]] = {}
    of_copy: dict[str, dict[str, float]] = {}
    for line in cells:
        us.setdefault(line["operator"], {})[line["cell"]] = line["us"]
        if {"ours", "copy"} <= line["us"].keys() and "copied_bytes_per_s" in environment:
            share = 1e6 * line["bytes"] / line["us"]["ours"] / environment["copied_bytes_per_s"]
            of_copy.setdefault(line["operator"], {})[line["cell"]] = round(share, 3)
    clocks = [line["sm_mhz"] for line in cells if line.get("sm_mhz")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment,
        "sm_mhz": [min(clocks), max(clocks)] if clocks else None,
        "us": us,
        "of_copy": of_copy,
        "times_faster": {name: times_faster(list(of.values())) for name, of in us.items()},
        "failed": [line for line in lines if line.get("failed") or "ended" in line],
    }


def times_faster(cells: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """For each other arm, the geometric mean of its time over ours in the cells that both ran."""
    others = {arm for cell in cells for arm in cell} - {"ours"}
    shared = {arm: [cell[arm] / cell["ours"] for cell in cells if arm in cell and "ours" in cell] for arm in others}
    return {arm: statistics.geometric_mean(ratios) for arm, ratios in sorted(shared.items()) if ratios}


def table(result: Result) -> Iterator[str]:
    """A table for each operator: microseconds, and beneath it how many times faster ours is on the geometric mean.

    `of copy` is the share of a large copy's bandwidth.
    """
    for name, of_cells in result["us"].items():
        arms = list(dict.fromkeys(arm for cell in of_cells.values() for arm in cell))
        shares = result["of_copy"].get(name, {})
        more = ["of copy"] if shares else []
        yield f"| {name} | " + " | ".join([*arms, *more]) + " |"
        yield "|---" * (len(arms) + len(more) + 1) + "|"
        for cell, us in of_cells.items():
            row = [f"{us[arm]:.2f}" if arm in us else "" for arm in arms]
            row += [f"{shares[cell]:.2f}" if cell in shares else "" for _ in more]
            yield f"| {cell} | " + " | ".join(row) + " |"
        ratios = result["times_faster"][name]
        row = [f"{ratios[arm]:.2f}" if arm in ratios else "" for arm in arms]
        yield "| over ours | " + " | ".join([*row, *("" for _ in more)]) + " |"
        yield ""
