"""`kernelbraid verify`: check that a log is what was written."""

from typing import Annotated, Any

import typer

from kernelbraid.agents.evidence_check import recheck
from kernelbraid.events.store import Problem, Store, Verification
from kernelbraid.ops.cli.options import Json, StoreUrl
from kernelbraid.ops.exits import ExitCode
from kernelbraid.ops.terminal import emit, say
from kernelbraid.ops.wiring import reading, session_of


def verify(
    context: typer.Context,
    campaign: Annotated[str | None, typer.Argument(metavar="[CAMPAIGN]", help="The campaign to check.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every campaign of the store.")] = False,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash noted earlier, which the campaign must end with.")
    ] = None,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Check every row, hash and blob of a log, and recompute every recorded measurement from its timing blocks.

    Names each row that was changed, removed or swapped, and exits 4. Somebody who can rewrite the whole file can
    rewrite every hash too: --head (the hash that `verify` printed earlier) or an HMAC key in $KERNELBRAID_HMAC_KEY
    shows that as well.
    """
    if (campaign is None) == (not everything):
        raise typer.BadParameter("name one campaign, or --all")
    if everything and head is not None:
        raise typer.BadParameter("--head belongs to one campaign")
    with reading(session_of(context, store)) as log:
        checks = [_check(log, name, head) for name in _names(log, campaign)]
    if json:
        emit([_as_json(*check) for check in checks])
    else:
        for check in checks:
            _print(*check)
    sound = all(not problems for _, problems in checks)
    raise typer.Exit(ExitCode.OK if sound else ExitCode.MISMATCH)


def _names(log: Store, campaign: str | None) -> list[str]:
    if campaign is None:
        return [row.name for row in log.campaigns()]
    if any(row.name == campaign for row in log.campaigns()):
        return [campaign]
    log.verify(campaign)  # rows without a head record are damage; no trace at all is CampaignMissing
    return [campaign]


def _check(log: Store, name: str, head: str | None) -> tuple[Verification, tuple[Problem, ...]]:
    """The chain first; figures are recomputed only from a log that can be believed."""
    chain = log.verify(name, head=head)
    return chain, chain.problems or recheck(log, name)


def _print(chain: Verification, problems: tuple[Problem, ...]) -> None:
    if not problems:
        say(f"{chain.campaign}: sound, {chain.positions} events, head {chain.head_hash}")
    for problem in problems:
        say(f"{chain.campaign} {problem.position}: {problem.what}")


def _as_json(chain: Verification, problems: tuple[Problem, ...]) -> dict[str, Any]:
    return {
        "campaign": chain.campaign,
        "sound": not problems,
        "positions": chain.positions,
        "head": chain.head_hash,
        "problems": [{"position": item.position, "what": item.what} for item in problems],
    }
