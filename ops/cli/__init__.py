"""The command line. Each command has a file of its own; here they are put together."""

import sys
from collections.abc import Sequence

import typer

from kernelbraid.ops.cli.door import Door
from kernelbraid.ops.cli.list import list_campaigns
from kernelbraid.ops.cli.log import log
from kernelbraid.ops.cli.options import StoreUrl
from kernelbraid.ops.cli.replay import replay
from kernelbraid.ops.cli.resume import resume
from kernelbraid.ops.cli.run import run
from kernelbraid.ops.cli.show import show
from kernelbraid.ops.cli.verify import verify
from kernelbraid.ops.terminal import prepare_streams
from kernelbraid.ops.wiring import Session, Wiring

SEARCH, READ, CHECK = "Search", "Read", "Check"

app = typer.Typer(
    cls=Door,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def kernelbraid(context: typer.Context, store: StoreUrl = None) -> None:
    """Search for fast kernels whose full-sequence and decode paths agree bit for bit.

    Every search is a campaign: an append-only log in a store. Data goes to stdout, everything else to stderr; commands
    that read take --json. Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 verification or replay mismatch,
    5 the campaign has a driver already, 130 interrupted.
    """
    wiring = context.obj if isinstance(context.obj, Wiring) else Wiring()
    context.obj = Session(store, wiring)


app.command("run", rich_help_panel=SEARCH)(run)
app.command("resume", rich_help_panel=SEARCH)(resume)
app.command("list", rich_help_panel=READ)(list_campaigns)
app.command("show", rich_help_panel=READ)(show)
app.command("log", rich_help_panel=READ)(log)
app.command("verify", rich_help_panel=CHECK)(verify)
app.command("replay", rich_help_panel=CHECK)(replay)


def main(arguments: Sequence[str] | None = None, wiring: Wiring | None = None) -> int:
    """Run one command and return its exit code. `wiring` brings stand-ins for harness and strategies."""
    prepare_streams()
    try:
        app(args=arguments, prog_name="kernelbraid", obj=wiring)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0
    finally:
        sys.stderr.flush()
    return 0
