"""`kernelbraid audit`: judge sources on their own, without a campaign."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.agents import audit as auditing
from kernelbraid.ops.cli.options import Json
from kernelbraid.ops.cli.run import require_available, require_operator
from kernelbraid.ops.exits import ExitCode
from kernelbraid.ops.harnesses import harness_factory
from kernelbraid.ops.report.audited import audit_json, audit_parts
from kernelbraid.ops.terminal import console, emit, tell
from kernelbraid.ops.wiring import session_of


def audit(
    context: typer.Context,
    operator: Annotated[
        str, typer.Argument(metavar="OPERATOR", help="An operator's name, or a folder with an operator.toml.")
    ],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The folder of sources to judge, or one file. Nothing else is read.")
    ],
    target: Annotated[str, typer.Option(help="What the sources are for: cpu, or triton on an NVIDIA GPU.")] = "cpu",
    incumbent: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Time against these sources instead of the root; they are not checked."),
    ] = None,
    whole_log: Annotated[bool, typer.Option("--log", help="Print all that compiler and runner printed.")] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run the sources with your own rights, without a sandbox.")
    ] = False,
    json: Json = False,
) -> None:
    """Judge the sources in PATH against OPERATOR's root: build, check, time. No campaign, no store.

    They go through what an offspring in a search goes through. Exit code 0: verified, faster or not; 1: not verified,
    and the evidence says why; 3: no such operator or path. `no_gain` is a result of its own, not a failure.
    """
    require_available(target, "catalogue")
    require_operator(operator)
    if unsafe_no_sandbox:
        tell("WARNING: no sandbox: these sources run with your rights.")
    report = auditing.audit(
        operator,
        path,
        target=target,
        incumbent=incumbent,
        harness=harness_factory(session_of(context, None).wiring, unsafe_no_sandbox),
        unsafe_no_sandbox=unsafe_no_sandbox,
    )
    if json:
        emit(audit_json(report))
    else:
        terminal = console(sys.stdout)
        for part in audit_parts(report, whole_log=whole_log):
            terminal.print(part)
    raise typer.Exit(ExitCode.OK if report.verified else ExitCode.FAILURE)
