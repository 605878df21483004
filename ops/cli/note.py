"""`kernelbraid note`: write something into a campaign's log."""

from typing import Annotated

import typer

from kernelbraid.agents import search
from kernelbraid.ops.cli.options import Campaign, StoreUrl
from kernelbraid.ops.terminal import tell
from kernelbraid.ops.wiring import campaign_row, changing, session_of


def note(
    context: typer.Context,
    campaign: Campaign,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to write down.")],
    store: StoreUrl = None,
) -> None:
    """Write a note into a campaign's log; at any time, also while it runs or after it stopped."""
    with changing(session_of(context, store)) as log:
        campaign_row(log, campaign)
        search.note(log, campaign, text)
    tell(f"noted in {campaign}")
