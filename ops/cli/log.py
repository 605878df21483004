"""`kernelbraid log`: every event of a campaign."""

from typing import Annotated, Any

import typer

from kernelbraid.events.event import Recorded
from kernelbraid.ops.campaigns import log_of
from kernelbraid.ops.cli.options import Campaign, Json, StoreUrl
from kernelbraid.ops.report.figures import plain
from kernelbraid.ops.terminal import emit, flush, say
from kernelbraid.ops.wiring import reading, session_of
from kernelbraid.projections.timeline import entry, entry_line


def log(
    context: typer.Context,
    campaign: Campaign,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until Ctrl-C.")] = False,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Begin after position N.")] = 0,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Print a campaign's log, oldest first, a line an event: position, time (UTC), actor, what happened.

    With --json each line is one stored event. A fork's log begins with its parents' events up to the fork.
    """
    with reading(session_of(context, store)) as found:
        position = after
        for recorded in log_of(found, campaign):
            if recorded.position > after:
                _print(recorded, json)
                position = recorded.position
        if follow:
            flush()
            for recorded in found.follow(campaign, position, stop=lambda: False):
                _print(recorded, json)
                flush()


def _print(recorded: Recorded, json: bool) -> None:
    if json:
        emit(stored(recorded), indent=False)
    else:
        say(plain(entry_line(entry(recorded)), keep_spaces=True))


def stored(recorded: Recorded) -> dict[str, Any]:
    """The event as its record holds it, at today's schema version."""
    return {
        "campaign": recorded.campaign,
        "position": recorded.position,
        "recorded_at": recorded.recorded_at.isoformat(timespec="microseconds"),
        "actor": recorded.actor,
        "cause": recorded.cause,
        "batch": list(recorded.batch),
        "type": type(recorded.event).__name__,
        "version": type(recorded.event).version,
        "payload": recorded.event.model_dump(mode="json"),
    }
