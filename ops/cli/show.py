"""`kernelbraid show`: a campaign, or one implementation of it."""

import sys
from typing import Annotated, Any

import typer

from kernelbraid.events.errors import BlobMissing
from kernelbraid.events.store import Store
from kernelbraid.ops.campaigns import implementation_in, lineage_at, log_of, state_at
from kernelbraid.ops.cli.options import At, Campaign, Json, StoreUrl
from kernelbraid.ops.report.dossier import Dossier, dossier
from kernelbraid.ops.report.show import campaign_lines, implementation_lines
from kernelbraid.ops.terminal import draws_unicode, emit, say
from kernelbraid.ops.wiring import driven, reading, session_of
from kernelbraid.projections.summary import summary


def show(
    context: typer.Context,
    campaign: Campaign,
    implementation: Annotated[
        str | None, typer.Argument(metavar="[IMPLEMENTATION]", help="One implementation, such as i0007, or `best`.")
    ] = None,
    at: At = None,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Show a campaign's lineage and summary, or all evidence about one IMPLEMENTATION.

    In the tree each line is an implementation below its (first) parent: what it added, its scope, the audit's result,
    and root over it. The best and every former best are marked; a merge names all its parents.
    """
    with reading(session_of(context, store)) as log:
        if implementation is None:
            _campaign(log, campaign, at, json)
        else:
            _implementation(log, campaign, implementation, at, json)


def _campaign(log: Store, name: str, at: int | None, json: bool) -> None:
    state, graph = lineage_at(log, name, at)
    found = summary(state, driven=driven(log, name))
    if json:
        emit(found.model_dump(mode="json"))
        return
    for line in campaign_lines(found, graph, draws_unicode(sys.stdout)):
        say(line)


def _implementation(log: Store, name: str, implementation: str, at: int | None, json: bool) -> None:
    if implementation == "best":
        implementation = implementation_in(state_at(log, name, at), implementation)
    found = dossier(log_of(log, name, at), implementation)
    printed = _printed(log, found)
    if json:
        emit(_evidence(found, printed))
        return
    for line in implementation_lines(found, printed):
        say(line)


def _printed(log: Store, found: Dossier) -> str:
    if found.audit is None or found.audit.log is None:
        return ""
    try:
        return log.blob(found.audit.log).decode("utf-8", errors="replace")
    except BlobMissing:
        return "(the log's bytes are not in this store)"


def _evidence(found: Dossier, printed: str) -> dict[str, Any]:
    node = found.state.implementations[found.implementation]
    return {
        "campaign": found.state.campaign,
        "implementation": node.id,
        "best": found.state.best == node.id,
        "parents": list(node.parents),
        "mechanisms": list(node.mechanisms),
        "scope": node.scope,
        "standing": node.standing,
        "stale": node.stale,
        "promoted": node.promoted,
        "verdict": node.verdict,
        "performance": node.performance,
        "measurement": None if node.measurement is None else node.measurement.model_dump(mode="json"),
        "latencies_s": node.latencies_s,
        "resources": node.resources,
        "sources": [item.model_dump() for item in node.sources],
        "regions": [item.model_dump() for item in node.regions],
        "audits": [item.model_dump(mode="json") for item in found.audits],
        "timings": [item.model_dump(mode="json") for item in found.timings],
        "log": printed,
    }
