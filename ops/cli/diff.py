"""`kernelbraid diff`: two implementations' sources against each other."""

import difflib
from typing import Annotated

import typer

from kernelbraid.events.state import State
from kernelbraid.events.store import Store
from kernelbraid.ops.campaigns import implementation_in, state_at
from kernelbraid.ops.cli.options import At, Campaign, Json, StoreUrl
from kernelbraid.ops.terminal import emit, say
from kernelbraid.ops.wiring import reading, session_of


def diff(
    context: typer.Context,
    campaign: Campaign,
    left: Annotated[str, typer.Argument(metavar="A", help="An implementation, such as i0000, or `best`.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    at: At = None,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Print the unified diff of two implementations' sources; nothing when they are equal."""
    with reading(session_of(context, store)) as log:
        state = state_at(log, campaign, at)
        left, right = implementation_in(state, left), implementation_in(state, right)
        before, after = sources(log, state, left), sources(log, state, right)
    diffs = {file: _diff(file, left, right, before.get(file, ""), after.get(file, "")) for file in {**before, **after}}
    if json:
        emit({"campaign": campaign, "left": left, "right": right, "files": {k: v for k, v in diffs.items() if v}})
        return
    for text in diffs.values():
        for line in text.splitlines():
            say(line)


def sources(log: Store, state: State, implementation: str) -> dict[str, str]:
    """File name to text."""
    files = state.implementations[implementation].sources
    return {file.name: log.blob(file.digest).decode("utf-8", errors="replace") for file in files}


def _diff(file: str, left: str, right: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{left}/{file}", f"{right}/{file}", lineterm=""
    )
    return "\n".join(lines)
