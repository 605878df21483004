"""`kernelbraid list`: the campaigns of a store."""

import sys
from typing import Any

import typer
from rich.table import Table

from kernelbraid.events.state import fold
from kernelbraid.events.store import CampaignRow, Store
from kernelbraid.ops.cli.options import Json, StoreUrl
from kernelbraid.ops.report.figures import times
from kernelbraid.ops.terminal import console, emit, tell
from kernelbraid.ops.wiring import driven, reading, session_of
from kernelbraid.projections.summary import shown_status

COLUMNS = ("campaign", "operator", "target", "status", "position", "speedup_ratio", "best", "forked_from")


def list_campaigns(context: typer.Context, json: Json = False, store: StoreUrl = None) -> None:
    """List the campaigns of the store: operator, target, status, position and how fast the best is.

    The status is running, paused, interrupted (nobody drives it: `resume` goes on) or stopped (final: `fork` goes on).
    """
    with reading(session_of(context, store)) as log:
        rows = [_row(log, row) for row in log.campaigns()]
    if json:
        emit(rows)
    elif rows:
        console(sys.stdout).print(_table(rows))
    else:
        tell("no campaigns yet: `kernelbraid run OPERATOR` begins one")


def _row(log: Store, row: CampaignRow) -> dict[str, Any]:
    state = fold(log.read(row.name))
    contract = state.specified().contract
    return {
        "campaign": row.name,
        "operator": contract.operator,
        "target": contract.target,
        "status": shown_status(state.status, driven(log, row.name)),
        "position": state.position,
        "best": state.best,
        "speedup_ratio": state.speedup_ratio,
        "forked_from": row.parent,
        "partial": row.partial,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in COLUMNS:
        table.add_column(heading.replace("_ratio", "").replace("_", " "), no_wrap=True)
    for row in rows:
        shown = {**row, "speedup_ratio": times(row["speedup_ratio"])}
        table.add_row(*(str(shown[heading] if shown[heading] is not None else "-") for heading in COLUMNS))
    return table
