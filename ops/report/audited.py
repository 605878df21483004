"""An audit on its own, in words and as JSON."""

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kernelbraid.agents.audit import AuditReport, WorkloadTiming
from kernelbraid.kernels.audit.outcome import ROOT, Blocks
from kernelbraid.ops.report.evidence import (
    blocks_figures,
    blocks_line,
    check_lines,
    environment_lines,
    evidence_lines,
    log_lines,
    measurement_lines,
    resource_lines,
)
from kernelbraid.ops.report.figures import seconds, times


def audit_parts(report: AuditReport, *, whole_log: bool = False) -> Iterator[RenderableType]:
    """Everything `audit` prints, part by part."""
    evidence = () if report.verified else evidence_lines(report.evidence)
    yield Text("\n".join([_verdict(report), *evidence]))
    if report.checks:
        yield Text("\n".join(["", "checks", *check_lines(report.checks, report.evidence)]))
    if report.workloads:
        yield Text("")
        yield workload_table(report)
    yield Text("\n".join(_rest(report, whole_log)))


def _verdict(report: AuditReport) -> str:
    outcome = report.outcome
    stages = (("build", outcome.build_s), ("checks", outcome.check_s), ("timing", outcome.timing_s))
    took = ", ".join(f"{name} {seconds(value)}" for name, value in stages if value)
    result = f", {report.performance}" if report.performance else ""
    return f"{report.operator} on {report.target}: {report.verdict.value}{result}" + (f" ({took})" if took else "")


def workload_table(report: AuditReport) -> Table:
    """Workload by workload: root, incumbent if it is another, candidate, and root over candidate with its bound."""
    rival = report.incumbent != ROOT
    table = Table(title="latency of one call, timed in turn", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    headings = ["weight", "root", *(["incumbent"] if rival else []), "candidate", "root over it", "at least", "limit"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report.workloads:
        table.add_row(row.workload, *_row(row, rival))
    return table


def _row(row: WorkloadTiming, rival: bool) -> Iterator[str]:
    yield f"{row.weight:g}"
    yield seconds(row.root_s)
    if rival:
        yield seconds(row.incumbent_s)
    yield seconds(row.candidate_s)
    yield times(None if row.ratio is None else 1 / row.ratio)
    yield times(None if row.upper_bound_ratio is None else 1 / row.upper_bound_ratio)
    yield times(1 / row.limit_ratio) + ("" if row.within_limit else " EXCEEDED")


def _rest(report: AuditReport, whole_log: bool) -> Iterator[str]:
    if report.measurement is not None:
        yield "decision, by weighted latency"
        yield from measurement_lines(report.measurement)
        yield from (blocks_line(stage, blocks) for stage, blocks in _sessions(report))
    if report.outcome.resources:
        yield from ("", "artifact")
        yield from resource_lines(sorted(report.outcome.resources.items()))
    yield from ("", "measured on")
    yield from environment_lines(report.environment)
    yield from log_lines(_log(report), whole=whole_log)


def _sessions(report: AuditReport) -> Iterator[tuple[str, Blocks]]:
    for stage, blocks in (("screen", report.outcome.screen), ("confirmation", report.outcome.confirmation)):
        if blocks is not None:
            yield stage, blocks


def _log(report: AuditReport) -> str:
    return report.outcome.log.decode("utf-8", errors="replace")


def audit_json(report: AuditReport) -> dict[str, Any]:
    """All of it, times in seconds; a ratio is candidate over root, or over the incumbent where it says so."""
    outcome, measurement = report.outcome, report.measurement
    return {
        "operator": report.operator,
        "target": report.target,
        "incumbent": report.incumbent,
        "verdict": report.verdict.value,
        "verified": report.verified,
        "evidence": report.evidence,
        "performance": report.performance,
        "speedup_ratio": report.speedup_ratio,
        "measurement": None if measurement is None else measurement.model_dump(mode="json"),
        "checks": [
            {"name": item.name, "passed": item.passed, "cases": item.cases, "evidence": item.evidence}
            for item in report.checks
        ],
        "workloads": [_workload(row) for row in report.workloads],
        "sessions": {stage: blocks_figures(blocks) for stage, blocks in _sessions(report)},
        "resources": dict(sorted(outcome.resources.items())),
        "artifact": outcome.artifact_digest,
        "seconds": {"build": outcome.build_s, "checks": outcome.check_s, "timing": outcome.timing_s},
        "environment": report.environment.model_dump(mode="json"),
        "log": _log(report),
    }


def _workload(row: WorkloadTiming) -> dict[str, Any]:
    return {
        "workload": row.workload,
        "path": row.path,
        "weight": row.weight,
        "root_s": row.root_s,
        "incumbent_s": row.incumbent_s,
        "candidate_s": row.candidate_s,
        "ratio": row.ratio,
        "upper_bound_ratio": row.upper_bound_ratio,
        "incumbent_ratio": row.incumbent_ratio,
        "limit_ratio": row.limit_ratio,
    }
