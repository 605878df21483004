"""`kernelbraid best`: the best implementation, as files or on stdout."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.agents.search import operator_of
from kernelbraid.events.state import fold
from kernelbraid.events.store import Store
from kernelbraid.ops import champions
from kernelbraid.ops.cli.options import Campaign, Json, StoreUrl
from kernelbraid.ops.exits import EXPECTED
from kernelbraid.ops.harnesses import harness_factory
from kernelbraid.ops.report.best import best_report, report_lines, sources_of_best, write_best
from kernelbraid.ops.terminal import emit, say, tell
from kernelbraid.ops.wiring import Wiring, campaign_row, reading, session_of


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
    session = session_of(context, store)
    with reading(session) as log:
        campaign_row(log, campaign)
        report = best_report(log, campaign) if out is None else write_best(log, campaign, out)
        files = sources_of_best(log, report) if source else {}
        _warn(log, campaign, session.wiring)  # last: on a device it starts a harness, which takes seconds
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


def _warn(log: Store, campaign: str, wiring: Wiring) -> None:
    """Say if the best was measured in another environment; a machine that cannot audit has none to compare."""
    contract = fold(log.read(campaign, upto=1)).specified().contract
    factory = champions.warning_of(harness_factory(wiring), lambda *_: champions.of_campaign(log, campaign))
    with suppress(*EXPECTED), factory(operator_of(contract), contract.target):
        pass
