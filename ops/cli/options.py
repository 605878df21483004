"""Options and arguments that several commands share."""

from typing import Annotated

import typer

Campaign = Annotated[
    str, typer.Argument(metavar="CAMPAIGN", help="The campaign's name, as `kernelbraid list` shows it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of text.")]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store, such as sqlite:///campaigns.db. Default: $KERNELBRAID_STORE, else sqlite:///kernelbraid.db.",
    ),
]
At = Annotated[
    int | None, typer.Option("--at", min=1, metavar="N", help="Look at the campaign as it was after position N.")
]
