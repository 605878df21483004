"""`kernelbraid pause`: let a running campaign come to rest."""

from typing import Annotated

import typer

from kernelbraid.agents import search
from kernelbraid.ops.cli.options import Campaign, StoreUrl
from kernelbraid.ops.terminal import tell
from kernelbraid.ops.wiring import campaign_row, changing, session_of


def pause(
    context: typer.Context,
    campaign: Campaign,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "asked for by the user",
    store: StoreUrl = None,
) -> None:
    """Pause a campaign, from any terminal: running audits finish, nothing new starts. `resume` goes on."""
    with changing(session_of(context, store)) as log:
        campaign_row(log, campaign)
        search.pause(log, campaign, reason)
    tell(f"{campaign} pauses after its running audits: `kernelbraid resume {campaign}` goes on")
