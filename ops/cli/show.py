"""`kernelbraid show`: a campaign, or one implementation of it."""

import sys
from typing import Annotated, Any

import typer

from kernelbraid.events.store import Store
from kernelbraid.ops.campaigns import implementation_in, lineage_at, log_of, state_at
from kernelbraid.ops.cli.options import At, Campaign, Json, StoreUrl
from kernelbraid.ops.report.dossier import Dossier, Exhibits, dossier, exhibits
from kernelbraid.ops.report.evidence import blocks_figures
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
    whole_log: Annotated[
        bool, typer.Option("--log", help="Print all that compiler and runner printed, not its last lines.")
    ] = False,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Show a campaign's lineage and summary, or all evidence about one IMPLEMENTATION.

    In the tree each line is an implementation below its (first) parent: what it added, its scope, the audit's result,
    and root over it. The best and every former best are marked; a merge names all its parents. For one implementation:
    verdict and evidence, every check, the decision in numbers, limits, resources, environment, and what was printed.
    """
    with reading(session_of(context, store)) as log:
        if implementation is None:
            _campaign(log, campaign, at, json)
        else:
            _implementation(log, campaign, implementation, at, whole_log, json)


def _campaign(log: Store, name: str, at: int | None, json: bool) -> None:
    state, graph = lineage_at(log, name, at)
    found = summary(state, driven=driven(log, name))
    if json:
        emit(found.model_dump(mode="json"))
        return
    for line in campaign_lines(found, graph, draws_unicode(sys.stdout)):
        say(line)


def _implementation(log: Store, name: str, implementation: str, at: int | None, whole_log: bool, json: bool) -> None:
    if implementation == "best":
        implementation = implementation_in(state_at(log, name, at), implementation)
    found = dossier(log_of(log, name, at), implementation)
    shown = exhibits(log, found)
    if json:
        emit(_evidence(found, shown))
        return
    for line in implementation_lines(found, shown, whole_log=whole_log):
        say(line)


def _evidence(found: Dossier, shown: Exhibits) -> dict[str, Any]:
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
        "evidence": None if found.audit is None else found.audit.evidence,
        "measurement": None if node.measurement is None else node.measurement.model_dump(mode="json"),
        "latencies_s": node.latencies_s,
        "limits": {item.name: item.limit_ratio for item in found.state.specified().contract.workloads},
        "sessions": {stage: blocks_figures(blocks) for stage, blocks in shown.sessions.items()},
        "resources": node.resources,
        "sources": [item.model_dump() for item in node.sources],
        "regions": [item.model_dump() for item in node.regions],
        "proposed": None if found.proposed is None else found.proposed.model_dump(mode="json"),
        "audits": [item.model_dump(mode="json") for item in found.audits],
        "timings": [item.model_dump(mode="json") for item in found.timings],
        "promotions": [item.model_dump(mode="json") for item in found.promotions],
        "environment": None if found.environment is None else found.environment.model_dump(mode="json"),
        "log": shown.log,
        "missing": list(shown.missing),
    }
