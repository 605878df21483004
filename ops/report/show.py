"""`show` in words: a campaign's lineage and summary, or all evidence about one implementation."""

from collections.abc import Iterable, Iterator

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.state import Implementation, State
from kernelbraid.events.values import Check, Measurement, Workload
from kernelbraid.ops.report.dossier import Dossier
from kernelbraid.ops.report.figures import plain, seconds, size, times
from kernelbraid.ops.report.outcome import standing_line
from kernelbraid.projections.lineage import ASCII, UNICODE, Lineage, tree_lines
from kernelbraid.projections.summary import BudgetSummary, CampaignSummary
from kernelbraid.projections.timeline import entry

LOG_TAIL_LINES = 12


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


def implementation_lines(found: Dossier, log: str) -> Iterator[str]:
    """All evidence about one implementation; `log` is what builder and runner printed in its last audit."""
    node = found.state.implementations[found.implementation]
    yield from _identity(found, node)
    if found.audit is not None:
        yield from _audit(found.audit, node, found.state.specified().contract.workloads)
    yield from _regions(found.state, node)
    yield from ("", "in the log")
    yield from (f"  {item.position:>5}  {item.actor:<8}  {plain(entry(item).what, 160)}" for item in found.records)
    if log:
        tail = log.splitlines()[-LOG_TAIL_LINES:]
        yield from ("", f"output of builder and runner (last {len(tail)} lines)")
        yield from (f"  {plain(line, 160)}" for line in tail)


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


def _audit(audit: AuditCompleted, node: Implementation, workloads: Iterable[Workload]) -> Iterator[str]:
    result = f", {node.performance}" if node.performance else ""
    yield from ("", f"audit: {audit.verdict}{result}, in {seconds(audit.elapsed_s)}")
    if audit.evidence:
        yield f"  {plain(audit.evidence, 200)}"
    yield from (f"  {_check(check)}" for check in audit.checks)
    if node.measurement is not None:
        yield from _measurement(node.measurement, workloads)
    yield from (f"  {workload:<28}{seconds(time_s):>10}" for workload, time_s in node.latencies_s.items())
    yield from (f"  {name:<28}{_resource(name, value):>10}" for name, value in node.resources.items())


def _check(check: Check) -> str:
    evidence = f": {plain(check.evidence, 160)}" if check.evidence and not check.passed else ""
    return f"{'ok  ' if check.passed else 'FAIL'}  {check.name} ({check.cases} cases){evidence}"


def _measurement(measurement: Measurement, workloads: Iterable[Workload]) -> Iterator[str]:
    yield "timing"
    bound = f"at most {measurement.upper_bound_ratio:.4f}, needs {1 - measurement.delta_ratio:.4f}"
    yield f"  {measurement.ratio:.4f} of {measurement.incumbent} ({bound})"
    if measurement.confirmation is not None and measurement.alpha is not None:
        yield f"  confirmation {measurement.confirmation} at alpha {measurement.alpha:.2g}"
    else:
        yield "  the screen ruled a gain out"
    limits = {workload.name: workload.limit_ratio for workload in workloads}
    for workload, ratio in measurement.root_ratios.items():
        most = measurement.root_upper_bound_ratios[workload]
        yield f"  {workload:<28}{ratio:.3f} of the root, at most {most:.3f}, limit {limits[workload]:g}"


def _resource(name: str, value: float) -> str:
    return size(value) if name.endswith("_bytes") else f"{value:g}"


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
