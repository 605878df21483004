"""`kernelbraid export`: a campaign as one file."""

from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.ops.cli.options import Campaign, StoreUrl
from kernelbraid.ops.exits import OpsError
from kernelbraid.ops.report.figures import size
from kernelbraid.ops.terminal import say, tell
from kernelbraid.ops.wiring import campaign_row, reading, session_of


def export(
    context: typer.Context,
    campaign: Campaign,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to. Default: CAMPAIGN.jsonl.gz in this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
    store: StoreUrl = None,
) -> None:
    """Write a campaign, its ancestors' part of the log and all blobs into one file, every hash kept.

    The file is gzip over JSON lines, and the same log gives the same bytes. `import` takes it into any store.
    """
    file = out or Path(f"{campaign}.jsonl.gz")
    if file.exists() and not force:
        raise OpsError(f"{file} is there already: name another file with --out, or add --force")
    with reading(session_of(context, store)) as log:
        campaign_row(log, campaign)
        log.export(campaign, file)
    say(str(file))
    tell(f"{campaign}: {size(file.stat().st_size)}")
