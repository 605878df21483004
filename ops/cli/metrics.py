"""`kernelbraid metrics`: a campaign's metrics."""

import sys

import typer

from kernelbraid.ops.cli.options import Campaign, Json, StoreUrl
from kernelbraid.ops.metrics.exposition import exposition, families
from kernelbraid.ops.terminal import emit
from kernelbraid.ops.wiring import campaign_row, reading, session_of


def metrics(context: typer.Context, campaign: Campaign, json: Json = False, store: StoreUrl = None) -> None:
    """Print a campaign's metrics in Prometheus' text format, folded from its log alone.

    The same log gives the same figures, on any machine and at any time. `run --metrics-port` serves them while the
    campaign runs, with the process's own beside them.
    """
    with reading(session_of(context, store)) as log:
        campaign_row(log, campaign)
        if json:
            emit(families(log, campaign))
        else:
            sys.stdout.write(exposition(log, campaign))
