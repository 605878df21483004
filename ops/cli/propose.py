"""`kernelbraid propose`: hand an offspring written by hand in to a campaign."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.agents import outside
from kernelbraid.ops.campaigns import implementation_in, state_at
from kernelbraid.ops.cli.options import Campaign, Json, OperatorFolder, StoreUrl
from kernelbraid.ops.terminal import emit, say, tell
from kernelbraid.ops.wiring import changing, driven, session_of, store_words


class Reach(StrEnum):
    """Whose results or speed an offspring changes."""

    FULL = "full"
    DECODE = "decode"
    JOINT = "joint"


def propose(
    context: typer.Context,
    campaign: Campaign,
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder with the complete sources, or one file of them.")
    ],
    parent: Annotated[
        list[str],
        typer.Option(
            "--parent", metavar="IMPLEMENTATION", help="What it derives from, such as i0003 or best (repeat)."
        ),
    ],
    scope: Annotated[Reach, typer.Option(help="Which entries it changes: full sequence, decode, or both.")],
    rationale: Annotated[str, typer.Option(metavar="TEXT", help="Why it should be faster, or what it opens.")],
    risks: Annotated[str, typer.Option(metavar="TEXT", help="What may go wrong numerically.")] = outside.RISKS,
    falsified_by: Annotated[
        str, typer.Option("--falsified-by", metavar="TEXT", help="What would show that it is wrong.")
    ] = outside.FALSIFICATION,
    operator: OperatorFolder = None,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Hand in to a campaign that audits without a sandbox.")
    ] = False,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Hand in the sources in DIR as an offspring of --parent; it is audited like any other, and may be promoted.

    Possible while the campaign runs, is paused or was interrupted: its driver audits the offspring in its next round,
    or when it is resumed. Regions (# region NAME ... # endregion NAME) say which paths a change reaches: one that
    reaches the other path against --scope is refused. stdout gets the implementation's id. Exit code 1: refused, and
    the message says why; 3: no such campaign, implementation or DIR.
    """
    session = session_of(context, store)
    with changing(session) as log:
        state = state_at(log, campaign)
        handed = outside.propose(
            campaign,
            path,
            store=log,
            parents=tuple(implementation_in(state, name) for name in parent),
            scope=scope.value,
            rationale=rationale,
            numerical_risks=risks,
            falsification=falsified_by,
            operator=operator,
            unsafe_no_sandbox=unsafe_no_sandbox,
        )
        taken_up, words = driven(log, campaign), store_words(log)
    if json:
        emit({**asdict(handed), "driven": taken_up})
        return
    say(handed.implementation)
    then = f"show {campaign} {handed.implementation}" if taken_up else f"resume {campaign}"
    tell(f"next:  kernelbraid {then}{words}" + ("  (its driver audits it in its next round)" if taken_up else ""))
