"""`kernelbraid requalify`: judge a campaign's champions again, in today's environment."""

import sys
from typing import Annotated

import typer

from kernelbraid.agents import requalify as requalifying
from kernelbraid.ops.cli.options import Campaign, Json, OperatorFolder, StoreUrl
from kernelbraid.ops.driving import logged, progress_view, warned_of_sandbox, watch_all
from kernelbraid.ops.exits import ExitCode
from kernelbraid.ops.harnesses import harness_factory
from kernelbraid.ops.report.requalified import requalification_json, requalification_parts
from kernelbraid.ops.signals import Interruption
from kernelbraid.ops.terminal import console, emit
from kernelbraid.ops.wiring import campaign_row, changing, session_of, store_words


def requalify(
    context: typer.Context,
    campaign: Campaign,
    everything: Annotated[bool, typer.Option("--all", help="Judge the archive again too.")] = False,
    name: Annotated[str | None, typer.Option(help="The child's name. Default: the campaign's, numbered.")] = None,
    operator: OperatorFolder = None,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run candidates with your own rights, without a sandbox.")
    ] = False,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Judge root, best and frontier of CAMPAIGN again, on today's machine, compiler and contract, and say what holds.

    The campaign is forked at its end and left as it is. What wins there is promoted by the usual rules, nothing new is
    tried, and the child is left paused: `resume CHILD` searches on in this environment. A claim holds when its checks
    pass and its ratio to the root is no less than recorded, as far as both intervals tell. Exit code 0: the best is
    still the best and holds; 1: it does not.
    """
    session = session_of(context, store)
    with changing(session) as log:
        campaign_row(log, campaign)
        with Interruption() as interruption, progress_view() as progress:
            found = requalifying.requalify(
                campaign,
                store=log,
                archive=everything,
                name=name,
                operator=operator,
                strategies=session.wiring.strategies,
                harness=harness_factory(session.wiring, unsafe_no_sandbox),
                watch=watch_all(progress.take, logged, warned_of_sandbox),
                pause_requested=interruption.reason,
                unsafe_no_sandbox=unsafe_no_sandbox,
            )
        words = store_words(log)
    if json:
        emit(requalification_json(found))
    else:
        terminal = console(sys.stdout)
        for part in requalification_parts(found, words):
            terminal.print(part)
    if interruption.reason() is not None and not found.complete:
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(ExitCode.OK if found.holds else ExitCode.FAILURE)
