"""`kernelbraid resume`: go on with a campaign."""

from typing import Annotated

import typer

from kernelbraid.agents import search
from kernelbraid.ops import champions
from kernelbraid.ops.cli.options import Campaign, Json, MetricsPort, OperatorFolder, StoreUrl
from kernelbraid.ops.driving import drive
from kernelbraid.ops.harnesses import harness_factory
from kernelbraid.ops.wiring import campaign_row, changing, session_of


def resume(
    context: typer.Context,
    campaign: Campaign,
    operator: OperatorFolder = None,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Go on without a sandbox, for a campaign that began without.")
    ] = False,
    metrics_port: MetricsPort = None,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Go on with a campaign that was paused, interrupted, killed or freshly forked.

    Nothing recorded is done again; an audit that was lost with its process is repeated. It has to be the machine and
    the compiler of the campaign: elsewhere, `requalify CAMPAIGN` judges root, best and frontier anew.
    """
    session = session_of(context, store)
    with changing(session) as log:
        campaign_row(log, campaign)
        code = drive(
            log,
            lambda driven, watch, pause: search.resume(
                campaign,
                store=driven,
                operator=operator,
                strategies=session.wiring.strategies,
                harness=champions.warning_of(
                    harness_factory(session.wiring, unsafe_no_sandbox), lambda *_: champions.of_campaign(log, campaign)
                ),
                watch=watch,
                pause_requested=pause,
            ),
            json=json,
            metrics_port=metrics_port,
        )
    raise typer.Exit(code)
