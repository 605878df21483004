"""`kernelbraid operators`: what can be searched."""

import sys
from typing import Any

from rich.table import Table

from kernelbraid.kernels.operators.catalogue import load_catalogue
from kernelbraid.kernels.operators.operator import Operator, load_operator, operator_names, operator_targets
from kernelbraid.ops.cli.options import Json
from kernelbraid.ops.terminal import console, emit


def operators(json: Json = False) -> None:
    """List the operators that come with the package: targets, timed workloads, and mechanisms of the catalogue.

    `run` also takes a folder of your own with an operator.toml.
    """
    rows = [_row(load_operator(name, operator_targets(name)[0])) for name in operator_names()]
    if json:
        emit(rows)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("operator", "targets", "workloads", "mechanisms", "what it computes"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        mechanisms = ", ".join(f"{count} {target}" for target, count in row["mechanisms"].items())
        table.add_row(
            row["operator"], ", ".join(row["targets"]), str(len(row["workloads"])), mechanisms, row["summary"]
        )
    console(sys.stdout).print(table)


def _row(operator: Operator) -> dict[str, Any]:
    return {
        "operator": operator.name,
        "summary": operator.summary,
        "definition": operator.definition,
        "targets": list(operator.targets()),
        "workloads": [workload.name for workload in operator.workloads],
        "contract": dict(operator.contract),
        "mechanisms": {target: len(load_catalogue(operator, target)) for target in operator.targets()},
    }
