"""Driving a campaign from the command line: progress while it runs, the outcome when it ends."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kernelbraid.agents.campaign import Watch
from kernelbraid.agents.driver import PauseRequested
from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State
from kernelbraid.events.store import Store
from kernelbraid.ops.exits import ExitCode
from kernelbraid.ops.progress.plain import PlainProgress
from kernelbraid.ops.report.best import write_best
from kernelbraid.ops.report.outcome import outcome
from kernelbraid.ops.signals import Interruption
from kernelbraid.ops.terminal import console, emit, tell
from kernelbraid.ops.wiring import store_folder
from kernelbraid.projections.performance import PERFORMANCE, performance_table
from kernelbraid.projections.projection import STATE, rebuild
from kernelbraid.projections.summary import CampaignSummary

Drive = Callable[[Watch, PauseRequested], CampaignSummary]


def drive(store: Store, start: Drive, *, json: bool) -> ExitCode:
    """Drive until the campaign stops or is paused, then say what it came to."""
    with ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        progress = stack.enter_context(PlainProgress())
        summary = start(_watch(progress.take, warn_of_sandbox), interruption.reason)
        interrupted = interruption.reason() is not None and summary.status != "stopped"
    _conclude(store, summary, json)
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILURE if summary.stop_reason == "root_unqualified" else ExitCode.OK


def _watch(*watchers: Watch) -> Watch:
    def watch(recorded: Recorded, state: State) -> None:
        for watcher in watchers:
            watcher(recorded, state)

    return watch


def warn_of_sandbox(recorded: Recorded, state: State) -> None:
    """Say once, when the root is audited, that nothing keeps the candidates in."""
    unboxed = state.environment is not None and state.environment.sandbox == "none"
    if unboxed and type(recorded.event).__name__ == "RootQualified":
        tell("WARNING: no sandbox here: candidates run with your rights. Only the package's own catalogue may run so.")


def _conclude(store: Store, summary: CampaignSummary, json: bool) -> None:
    sources = _keep_best(store, summary)
    if json:
        emit(summary.model_dump(mode="json"))
        return
    folded = rebuild(store.read(summary.campaign), STATE, PERFORMANCE)
    terminal = console(sys.stdout)
    for part in outcome(summary, performance_table(folded[STATE], folded[PERFORMANCE]), sources):
        terminal.print(part)


def _keep_best(store: Store, summary: CampaignSummary) -> Path | None:
    """Where the best's sources and evidence were written: beside the store, a folder for each best."""
    folder = store_folder(store)
    if folder is None or summary.best is None or summary.counts.promoted == 0:
        return None
    into = folder / "best" / summary.campaign / summary.best.implementation
    write_best(store, summary.campaign, into)
    return into
