"""`kernelbraid stop`: end a campaign for good."""

from typing import Annotated

import typer

from kernelbraid.agents import search
from kernelbraid.ops.cli.options import Campaign, StoreUrl
from kernelbraid.ops.terminal import tell
from kernelbraid.ops.wiring import campaign_row, changing, session_of


def stop(
    context: typer.Context,
    campaign: Campaign,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    store: StoreUrl = None,
) -> None:
    """Stop a campaign for good, from any terminal. Running audits still finish, without promotion; `fork` goes on."""
    with changing(session_of(context, store)) as log:
        campaign_row(log, campaign)
        search.stop(log, campaign, reason)
    tell(f"{campaign} is stopped: `kernelbraid fork {campaign}` goes on from it")
