"""`kernelbraid doctor`: what this machine has and lacks."""

from dataclasses import asdict

import typer

from kernelbraid.ops.cli.options import Json, StoreUrl
from kernelbraid.ops.doctor import Finding, examine, fit
from kernelbraid.ops.exits import ExitCode
from kernelbraid.ops.report.figures import plain
from kernelbraid.ops.terminal import emit, say
from kernelbraid.ops.wiring import session_of


def doctor(context: typer.Context, json: Json = False, store: StoreUrl = None) -> None:
    """Say what this machine has, what is missing and how to get it: compiler, sandbox, cores, store, extras.

    Exits 0 if the default search can run here, else 1.
    """
    findings = list(examine(session_of(context, store).url))
    if json:
        emit({"fit": fit(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            say(_line(finding))
        say("this machine can search" if fit(findings) else "this machine cannot search yet: see what is MISSING")
    raise typer.Exit(ExitCode.OK if fit(findings) else ExitCode.FAILURE)


def _line(finding: Finding) -> str:
    mark = "ok" if finding.present else "MISSING" if finding.required else "-"
    advice = f"\n{'':25}{finding.advice}" if finding.advice else ""
    return f"{mark:<8} {finding.name:<15} {plain(finding.found)}{advice}"
