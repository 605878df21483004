"""`show` in words: a campaign's lineage and summary, or all evidence about one implementation."""

from collections.abc import Iterable, Iterator

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.state import Implementation, State
from kernelbraid.events.values import Correctness, Workload
from kernelbraid.ops.report.dossier import Dossier, Exhibits
from kernelbraid.ops.report.evidence import (
    blocks_line,
    check_lines,
    environment_lines,
    evidence_lines,
    log_lines,
    measurement_lines,
    note_lines,
    resource_lines,
    workload_lines,
)
from kernelbraid.ops.report.figures import plain, seconds, times
from kernelbraid.ops.report.outcome import standing_line
from kernelbraid.projections.lineage import ASCII, UNICODE, Lineage, tree_lines
from kernelbraid.projections.summary import BudgetSummary, CampaignSummary
from kernelbraid.projections.timeline import entry


def campaign_lines(summary: CampaignSummary, graph: Lineage, unicode: bool) -> Iterator[str]:
    """The tree, then the summary."""
    yield from tree_lines(graph, UNICODE if unicode else ASCII)
    yield ""
    yield from summary_lines(summary)


def summary_lines(summary: CampaignSummary) -> Iterator[str]:
    """What `show C --json` holds, for a reader."""
    yield standing_line(summary)
    if summary.forked_from is not None:
        yield f"  forked from     {summary.forked_from.campaign} at {summary.forked_from.position}"
    yield f"  searched        {summary.operator} on {summary.target}"
    yield f"  root            {summary.root.implementation}, {seconds(summary.root.objective_s)} weighted"
    if summary.best is not None:
        best = summary.best
        yield f"  best            {best.implementation}, {seconds(best.objective_s)}, {times(best.speedup_ratio)}"
        yield f"                  {', '.join(best.mechanisms) or 'the root itself'}"
    for baseline in summary.baselines:
        ratios = f"{times(baseline.root_ratio)} of the root; the best is {times(baseline.best_ratio)} of it"
        yield f"  baseline        {baseline.name}: {seconds(baseline.objective_s)}, {ratios}"
    yield f"  kappa           {summary.kappa} of {summary.kappa_threshold}"
    yield f"  frontier        {_names(summary.frontier)}"
    yield f"  archive         {_names(summary.archive)}"
    yield f"  merge list      {_names(summary.merge_list)}"
    yield f"  in flight       {_names(summary.in_flight)}"
    counts = summary.opportunities
    yield f"  opportunities   {counts.pending} pending, {counts.consumed} consumed, {counts.withdrawn} withdrawn"
    for name, budget in summary.budgets.items():
        if budget.limit is not None or budget.spent:
            yield f"  budget {name:<9}{_budget(budget)}"
    for item in summary.promotions:
        gain = f"{times(item.gain_ratio)} of the best before, {times(item.speedup_ratio)} of the root"
        yield f"  promoted        {item.implementation} at {item.position}: {gain}"
    yield f"  digest          {summary.digest}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "-"


def _budget(budget: BudgetSummary) -> str:
    spent = f"{budget.spent:.6g} spent" + (f" of {budget.limit:.6g}" if budget.limit is not None else "")
    return spent + (f", {budget.inherited:g} inherited" if budget.inherited else "")


# --- one implementation --------------------------------------------------------------------------------------------


def implementation_lines(found: Dossier, shown: Exhibits, *, whole_log: bool = False) -> Iterator[str]:
    """All evidence about one implementation, the verdict first."""
    node = found.state.implementations[found.implementation]
    yield from _identity(found, node)
    if found.audit is not None:
        yield from _verdict(found.audit, node)
    if node.latencies_s:
        yield from _timing(found.state.specified().contract.workloads, node, shown)
    if node.resources:
        yield from ("", "artifact", *resource_lines(sorted(node.resources.items())))
    yield from _regions(found.state, node)
    yield from ("", "in the log")
    yield from (f"  {item.position:>5}  {item.actor:<8}  {plain(entry(item).what, 160)}" for item in found.records)
    if found.environment is not None:
        yield from ("", "measured on", *environment_lines(found.environment))
    yield from log_lines(shown.log, whole=whole_log)
    yield from (f"({what})" for what in shown.missing)


def _identity(found: Dossier, node: Implementation) -> Iterator[str]:
    best = " (the best)" if found.state.best == node.id else ""
    yield f"{found.state.campaign}/{node.id}{best}"
    yield f"  parents         {' + '.join(node.parents) or 'none: the root'}"
    yield f"  mechanisms      {', '.join(node.mechanisms) or '-'}"
    yield f"  standing        {node.standing}, scope {node.scope}" + (", stale" if node.stale else "")
    if found.proposed is not None:
        yield f"  why             {plain(found.proposed.rationale)}"
        yield f"  at risk         {plain(found.proposed.numerical_risks)}"
        yield f"  falsified if    {plain(found.proposed.falsification)}"
    if found.submitted is not None and found.submitted.contract_items:
        yield f"  settles anew    {', '.join(found.submitted.contract_items)}"


def _verdict(audit: AuditCompleted, node: Implementation) -> Iterator[str]:
    result = f", {node.performance}" if node.performance else ""
    stages = (("build", audit.build_s), ("checks", audit.check_s), ("timing", audit.timing_s))
    took = ", ".join(f"{name} {seconds(time_s)}" for name, time_s in stages if time_s)
    yield from ("", f"audit: {audit.verdict}{result} ({took or 'at once'})")
    if audit.verdict is not Correctness.VERIFIED:
        yield from evidence_lines(audit.evidence)
    if audit.checks:
        yield from ("", "checks", *check_lines(audit.checks, audit.evidence))
    if audit.verdict is Correctness.VERIFIED:
        yield from note_lines(audit.evidence)


def _timing(workloads: Iterable[Workload], node: Implementation, shown: Exhibits) -> Iterator[str]:
    yield from ("", "timing, by weighted latency")
    if node.measurement is not None:
        yield from measurement_lines(node.measurement)
    yield from (blocks_line(stage, blocks) for stage, blocks in shown.sessions.items())
    yield from ("", *workload_lines(node, workloads))


def _regions(state: State, node: Implementation) -> Iterator[str]:
    if not node.parents:
        return
    before = {region.name: region.digest for region in state.implementations[node.parents[0]].regions}
    after = {region.name: region.digest for region in node.regions}
    yield from ("", f"regions against {node.parents[0]}")
    for region in node.regions:
        if before.get(region.name) != region.digest:
            verb = "changed" if region.name in before else "added"
            yield f"  {region.name} {verb} ({' and '.join(region.paths)})"
    yield from (f"  {name} removed" for name in before if name not in after)
