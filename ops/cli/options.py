"""Options and arguments that several commands share."""

from typing import Annotated

import typer

from kernelbraid.ops.logging import LEVEL_VARIABLE, Level

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
OperatorFolder = Annotated[
    str | None,
    typer.Option(
        "--operator",
        metavar="FOLDER",
        help="Where the campaign's own operator lies now, if not where it was begun.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="P",
        help="Serve Prometheus metrics on 127.0.0.1 port P while driving.",
    ),
]
LogLevel = Annotated[
    Level,
    typer.Option(
        "--log-level", envvar=LEVEL_VARIABLE, help="Diagnostics on stderr, as JSON lines when it is no terminal."
    ),
]
