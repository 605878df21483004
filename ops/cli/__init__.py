"""The command line. Each command has a file of its own; here they are put together."""

import sys
from collections.abc import Callable, Mapping, Sequence

import typer

from kernelbraid.ops.cli.audit import audit
from kernelbraid.ops.cli.bench import bench_app
from kernelbraid.ops.cli.best import best
from kernelbraid.ops.cli.compare import compare
from kernelbraid.ops.cli.diff import diff
from kernelbraid.ops.cli.doctor import doctor
from kernelbraid.ops.cli.door import Door
from kernelbraid.ops.cli.export import export
from kernelbraid.ops.cli.fork import fork
from kernelbraid.ops.cli.import_ import import_file
from kernelbraid.ops.cli.list import list_campaigns
from kernelbraid.ops.cli.log import log
from kernelbraid.ops.cli.metrics import metrics
from kernelbraid.ops.cli.note import note
from kernelbraid.ops.cli.operators import operators
from kernelbraid.ops.cli.options import LogLevel, StoreUrl
from kernelbraid.ops.cli.pause import pause
from kernelbraid.ops.cli.propose import propose
from kernelbraid.ops.cli.replay import replay
from kernelbraid.ops.cli.requalify import requalify
from kernelbraid.ops.cli.resume import resume
from kernelbraid.ops.cli.run import run
from kernelbraid.ops.cli.show import show
from kernelbraid.ops.cli.stop import stop
from kernelbraid.ops.cli.verify import verify
from kernelbraid.ops.collector import collect_seldom
from kernelbraid.ops.logging import configure
from kernelbraid.ops.terminal import prepare_streams
from kernelbraid.ops.wiring import Session, Wiring

SEARCH, READ, CHECK, MACHINE = "Search", "Read", "Check and carry", "This machine"

app = typer.Typer(
    cls=Door,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def kernelbraid(context: typer.Context, store: StoreUrl = None, log_level: LogLevel = "warning") -> None:
    """Search for fast kernels whose full-sequence and decode paths agree bit for bit.

    Every search is a campaign: an append-only log in a store. Data goes to stdout, everything else to stderr; commands
    that read take --json. Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 verification or replay mismatch,
    5 the campaign has a driver already, 130 interrupted.
    """
    wiring = context.obj if isinstance(context.obj, Wiring) else Wiring()
    configure(log_level)
    context.obj = Session(store, wiring)


PANELS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    SEARCH: {
        "run": run,
        "resume": resume,
        "pause": pause,
        "stop": stop,
        "fork": fork,
        "propose": propose,
        "note": note,
    },
    READ: {
        "list": list_campaigns,
        "show": show,
        "log": log,
        "best": best,
        "diff": diff,
        "compare": compare,
        "metrics": metrics,
    },
    CHECK: {
        "audit": audit,
        "requalify": requalify,
        "verify": verify,
        "replay": replay,
        "export": export,
        "import": import_file,
    },
    MACHINE: {"operators": operators, "doctor": doctor},
}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(bench_app, name="bench", rich_help_panel=MACHINE)


def main(arguments: Sequence[str] | None = None, wiring: Wiring | None = None) -> int:
    """Run one command and return its exit code. `wiring` brings stand-ins for harness and strategies."""
    prepare_streams()
    collect_seldom()
    try:
        app(args=arguments, prog_name="kernelbraid", obj=wiring)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0
    finally:
        sys.stderr.flush()
    return 0
