"""What a search came to: the table of workloads, the baselines by the same clock, and where to go next."""

from collections.abc import Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kernelbraid.ops.report.figures import seconds, times
from kernelbraid.projections.performance import Agreement, PerformanceTable
from kernelbraid.projections.summary import CampaignSummary


def workload_table(view: PerformanceTable) -> Table:
    """Workload by workload: root, best, ratio, agreement."""
    table = Table(title=f"latency of one call: root i0000 and best {view.best}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    for heading in ("path", "weight", "root", "best", "ratio", "agreement"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in view.rows:
        figures = (seconds(row.root_s), seconds(row.best_s), times(row.ratio), _agreement(view.agreement))
        table.add_row(row.workload, row.path, f"{row.weight:g}", *figures)
    table.add_section()
    whole = (seconds(view.root_objective_s), seconds(view.best_objective_s), times(view.ratio))
    table.add_row("weighted sum", "", "", *whole, "")
    return table


def baseline_table(view: PerformanceTable) -> Table:
    """The builds beside the root, timed by the same clock and never candidates."""
    table = Table(
        title="weighted latency beside builds that are never candidates", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("build", no_wrap=True)
    for heading in ("weighted sum", "times the root", "best over it"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("root i0000", seconds(view.root_objective_s), times(1.0), times(view.ratio))
    for row in view.baselines:
        table.add_row(row.name, seconds(row.objective_s), times(row.root_ratio), times(row.best_ratio))
    table.add_row(f"best {view.best}", seconds(view.best_objective_s), times(view.ratio), times(1.0))
    return table


def _agreement(agreement: Agreement | None) -> str:
    if agreement is None:
        return "-"
    return "bit for bit" if agreement.held else "DIFFERS"


def outcome(
    summary: CampaignSummary, view: PerformanceTable | None, sources: Path | None, store_words: str
) -> Iterator[RenderableType]:
    """Everything `run` says at its end, part by part."""
    if view is not None:
        yield workload_table(view)
        if view.agreement is not None:
            yield Text(f"agreement: decode and full-sequence rows compared in {view.agreement.cases} cases")
        yield baseline_table(view)
    yield Text("\n".join(_ending(summary, sources, store_words)))


def _ending(summary: CampaignSummary, sources: Path | None, store_words: str) -> Iterator[str]:
    yield standing_line(summary)
    if summary.best is not None:
        yield f"best: {summary.best.implementation}, {times(summary.best.speedup_ratio)} of the root"
    if sources is not None:
        yield f"best sources: {sources}"
    yield "next:"
    yield from (f"  {command}{store_words}" for command in next_commands(summary))


def standing_line(summary: CampaignSummary) -> str:
    """Status, its reason, and what was audited."""
    reason = summary.stop_reason or summary.pause_reason
    counts = summary.counts
    audits = f"{counts.audited} audited, {counts.verified} verified, {counts.failed} failed"
    status = f"{summary.status}: {reason}" if reason else summary.status
    return f"{summary.campaign} {status} at position {summary.position} ({audits}, {counts.promoted} promotions)"


def next_commands(summary: CampaignSummary) -> tuple[str, str, str]:
    """Three commands worth typing now."""
    name = summary.campaign
    if summary.status in ("paused", "interrupted"):
        return (f"kernelbraid resume {name}", f"kernelbraid show {name}", f"kernelbraid log {name}")
    fork = f"kernelbraid fork {name} --at {summary.position} --set audits=20"
    if summary.kappa >= summary.kappa_threshold:
        fork += f" --set kappa={2 * summary.kappa_threshold}"
    return (f"kernelbraid show {name}", f"kernelbraid replay {name} --strict", fork)
