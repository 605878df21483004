"""`kernelbraid compare`: two campaigns side by side."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.table import Table

from kernelbraid.ops.campaigns import lineage_at
from kernelbraid.ops.cli.options import Json, StoreUrl
from kernelbraid.ops.report.figures import seconds, times
from kernelbraid.ops.terminal import console, emit, say
from kernelbraid.ops.wiring import reading, session_of
from kernelbraid.projections.compare import Comparison, Side
from kernelbraid.projections.compare import compare as set_side_by_side


def compare(
    context: typer.Context,
    left: Annotated[str, typer.Argument(metavar="CAMPAIGN", help="A campaign.")],
    right: Annotated[str, typer.Argument(metavar="CAMPAIGN", help="Another one, of this store too.")],
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Set two campaigns side by side: where they parted, what was asked differently, and what came of it.

    Their latencies are compared only if both ran under one contract on one machine.
    """
    with reading(session_of(context, store)) as log:
        one, other = lineage_at(log, left), lineage_at(log, right)
    found = set_side_by_side(one[0], other[0], one[1], other[1])
    if json:
        emit(found.model_dump(mode="json"))
        return
    console(sys.stdout).print(_table(found))
    for line in _notes(found):
        say(line)


def _table(found: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", found.left.summary.campaign, found.right.summary.campaign):
        table.add_column(heading, overflow="fold")
    for (label, left), (_, right) in zip(_rows(found.left), _rows(found.right), strict=True):
        table.add_row(label, left, right)
    return table


def _rows(side: Side) -> Iterator[tuple[str, str]]:
    view, best = side.summary, side.summary.best
    yield "status", f"{view.status} {view.stop_reason or view.pause_reason or ''}".strip()
    yield "position", str(view.position)
    yield "kappa", f"{view.kappa} of {view.kappa_threshold}"
    yield "audited, verified, failed", f"{view.counts.audited}, {view.counts.verified}, {view.counts.failed}"
    yield "promotions", str(view.counts.promoted)
    yield "promoted since they parted", ", ".join(item.implementation for item in side.own_promotions) or "-"
    yield "root", seconds(view.root.objective_s)
    yield "best", "-" if best is None else f"{best.implementation}, {seconds(best.objective_s)}"
    yield "best of the root", "-" if best is None else times(best.speedup_ratio)
    yield "mechanisms of the best", "-" if best is None else ", ".join(best.mechanisms) or "-"
    yield "frontier, archive", f"{len(view.frontier)}, {len(view.archive)}"
    yield "opportunities pending", str(view.opportunities.pending)


def _notes(found: Comparison) -> Iterator[str]:
    yield ""
    if found.common is None:
        yield "their logs share nothing"
    else:
        yield f"they parted after {found.common.campaign} position {found.common.position}"
    yield from (f"{change.key}: {change.before} | {change.after}" for change in found.differences)
    if found.best_ratio is not None:
        left, right = found.left.summary.campaign, found.right.summary.campaign
        yield f"best of {left} over best of {right}: {found.best_ratio:.3f} (from two sessions, so only indicative)"
    elif not found.comparable:
        yield "latencies are not comparable: another contract or another environment"
