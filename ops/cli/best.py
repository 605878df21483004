"""`kernelbraid best`: the best implementation, as files or on stdout."""

from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.ops.cli.options import Campaign, Json, StoreUrl
from kernelbraid.ops.report.best import best_report, report_lines, sources_of_best, write_best
from kernelbraid.ops.terminal import emit, say, tell
from kernelbraid.ops.wiring import campaign_row, reading, session_of


def best(
    context: typer.Context,
    campaign: Campaign,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write sources, report.md and report.json into this new folder.")
    ] = None,
    source: Annotated[bool, typer.Option("--source", help="Print the sources instead of the report.")] = False,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Print the evidence for the campaign's best implementation, or write it out with the sources.

    The report holds contract, environment, confirmation, checks, lineage of mechanisms, and the hashes of the events
    it rests on. A folder that holds anything else is never overwritten.
    """
    with reading(session_of(context, store)) as log:
        campaign_row(log, campaign)
        report = best_report(log, campaign) if out is None else write_best(log, campaign, out)
        files = sources_of_best(log, report) if source else {}
    if json:
        emit(report)
    elif source:
        for text in files.values():
            say(text.decode("utf-8", errors="replace").rstrip("\n"))
    elif out is None:
        for line in report_lines(report):
            say(line)
    else:
        tell(f"{report['implementation']} of {campaign} is in {out}")
