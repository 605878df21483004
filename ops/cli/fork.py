"""`kernelbraid fork`: begin a campaign at any position of another."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Annotated

import orjson
import typer

from kernelbraid.agents import forking
from kernelbraid.agents.search import operator_of
from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.ops.campaigns import state_at
from kernelbraid.ops.cli.options import Campaign, Json, OperatorFolder, StoreUrl
from kernelbraid.ops.harnesses import harness_factory
from kernelbraid.ops.terminal import emit, say, tell
from kernelbraid.ops.wiring import changing, session_of

ALIASES = {"cost": "cost_usd", "wall": "wall_s"}
"""Policy keys by the names of `run`'s options."""


def fork(
    context: typer.Context,
    campaign: Campaign,
    at: Annotated[
        int | None, typer.Option("--at", min=1, metavar="N", help="Continue after position N. Default: its end.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another value for a policy key, such as audits=20 (repeat)."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The child's name. Default: the parent's, numbered.")] = None,
    here: Annotated[
        bool, typer.Option("--here", help="For this machine and today's operator: judge root, best and frontier anew.")
    ] = False,
    reaudit: Annotated[bool, typer.Option("--reaudit", help="Judge root, best and frontier anew in any case.")] = False,
    operator: OperatorFolder = None,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Begin a child of CAMPAIGN after any of its positions. Nothing is copied, and the parent is left as it is.

    Budgets start anew; kappa is inherited, so where it is spent the fork has to raise it (--set kappa=60). Actions
    that were under way at N are dropped and their opportunities pending again. `resume CHILD` drives it.
    """
    session = session_of(context, store)
    with ExitStack() as stack:
        log = stack.enter_context(changing(session))
        contract = state_at(log, campaign, at).specified().contract
        harness: Auditing | None = None
        if here:
            made = harness_factory(session.wiring)(operator_of(contract, operator), contract.target)
            harness = stack.enter_context(made)
        child = forking.fork(
            campaign,
            store=log,
            at=at,
            name=name,
            changes=parsed(changes or ()),
            harness=harness,
            operator=operator,
            reaudit=reaudit,
        )
        position = log.position(child)
    if json:
        emit({"campaign": child, "parent": campaign, "at": at, "position": position})
        return
    say(child)
    tell(f"next:  kernelbraid resume {child}")


def parsed(changes: Iterable[str]) -> dict[str, object]:
    """Policy keys and values from KEY=VALUE words; a value is JSON where it reads as such, else text."""
    found: dict[str, object] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{change!r} is not KEY=VALUE", param_hint="--set")
        found[ALIASES.get(key, key)] = _value(value)
    return found


def _value(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
