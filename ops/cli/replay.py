"""`kernelbraid replay`: fold a log again, or let today's agents decide it again."""

import time
from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated

import orjson
import typer

from kernelbraid.agents.replay import Divergence, ReplayReport, replay_strict
from kernelbraid.events.event import Event
from kernelbraid.events.store import Store
from kernelbraid.ops.campaigns import log_of
from kernelbraid.ops.cli.options import Campaign, Json, OperatorFolder, StoreUrl
from kernelbraid.ops.digests import rebuilt
from kernelbraid.ops.exits import ExitCode
from kernelbraid.ops.report.figures import seconds
from kernelbraid.ops.terminal import emit, say, tell
from kernelbraid.ops.wiring import Session, reading, session_of
from kernelbraid.projections.digest import STATE_VIEW
from kernelbraid.projections.projection import STATE


def replay(
    context: typer.Context,
    campaign: Campaign,
    strict: Annotated[
        bool, typer.Option("--strict", help="Let today's agents decide everything again and compare with the log.")
    ] = False,
    upto: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only up to position N.")] = None,
    operator: OperatorFolder = None,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Rebuild a campaign from its log alone and print the digest of all it amounts to.

    It needs no model, GPU, compiler or clock.

    With --strict today's agents decide every batch again, given the outside facts that the log holds (audits,
    timings, model replies, what users did). The first decision that differs is shown from both sides, and the exit
    code is 4. Nothing is ever audited or called.
    """
    session = session_of(context, store)
    with reading(session) as log:
        if strict:
            raise typer.Exit(_strict(log, session, campaign, upto, operator, json))
        _rebuild(log, campaign, upto, json)


def _rebuild(log: Store, campaign: str, upto: int | None, json: bool) -> None:
    started = time.perf_counter()
    log_of(log, campaign, upto)
    folded = rebuilt(log, campaign, upto)
    position, digest, elapsed_s = folded.state.position, folded.digests[STATE.name], time.perf_counter() - started
    if json:
        view = {"position": position, "digest": digest, "view": STATE_VIEW, "elapsed_s": elapsed_s}
        emit({"campaign": campaign, **view, "digests": folded.digests})
        return
    say(f"{campaign} rebuilt up to {position} in {seconds(elapsed_s)}")
    say(f"digest {digest} (view {STATE_VIEW})")


def _strict(
    log: Store, session: Session, campaign: str, upto: int | None, operator: str | None, json: bool
) -> ExitCode:
    log_of(log, campaign, upto)
    report = replay_strict(log, campaign, upto=upto, operator=operator, strategies=session.wiring.strategies)
    for warning in report.warnings:
        tell(f"warning: {warning}")
    if json:
        emit(_as_json(report))
    elif report.divergence is None:
        say(f"{campaign}: {report.batches} decisions decided again, {report.events} events, no divergence")
    else:
        _print(report.divergence)
    return ExitCode.OK if report.divergence is None else ExitCode.MISMATCH


def _print(divergence: Divergence) -> None:
    say(f"divergence at position {divergence.position}, the {divergence.actor}'s decision: {divergence.reason}")
    say(f"recorded:      {_types(divergence.recorded)}")
    say(f"decided today: {_types(divergence.decided)}")
    for recorded, decided in zip_longest(divergence.recorded, divergence.decided):
        if recorded != decided:
            for line in _difference(recorded, decided):
                say(f"  {line}")


def _types(events: tuple[Event, ...]) -> str:
    return ", ".join(type(event).__name__ for event in events) or "nothing"


def _difference(recorded: Event | None, decided: Event | None) -> Iterator[str]:
    """What differs between two events, field by field; all of one that stands alone or against another type."""
    if recorded is None or decided is None or type(recorded) is not type(decided):
        for side, event in (("recorded", recorded), ("decided ", decided)):
            if event is not None:
                yield f"{side}  {type(event).__name__} {event.model_dump_json()}"
        return
    left, right = recorded.model_dump(mode="json"), decided.model_dump(mode="json")
    for name in left:
        if left[name] != right[name]:
            yield f"{type(recorded).__name__}.{name}"
            yield f"  recorded  {orjson.dumps(left[name]).decode()}"
            yield f"  decided   {orjson.dumps(right[name]).decode()}"


def _as_json(report: ReplayReport) -> dict[str, object]:
    divergence = report.divergence
    return {
        "campaign": report.campaign,
        "events": report.events,
        "batches": report.batches,
        "warnings": list(report.warnings),
        "divergence": None
        if divergence is None
        else {
            "position": divergence.position,
            "actor": divergence.actor,
            "reason": divergence.reason,
            "recorded": [_event(event) for event in divergence.recorded],
            "decided": [_event(event) for event in divergence.decided],
        },
    }


def _event(event: Event) -> dict[str, object]:
    return {"type": type(event).__name__, "payload": event.model_dump(mode="json")}
