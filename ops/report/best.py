"""The best implementation as files: its sources, and a report of the evidence that anyone can check."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.store import Store
from kernelbraid.ops.exits import FolderTaken, NotFound, OpsError
from kernelbraid.ops.report.dossier import Dossier, dossier
from kernelbraid.ops.report.figures import seconds, times
from kernelbraid.projections.performance import PERFORMANCE, PerformanceTable, performance_table
from kernelbraid.projections.projection import STATE, rebuild

REPORT_JSON = "report.json"
REPORT_MD = "report.md"


def best_report(store: Store, name: str) -> dict[str, Any]:
    """The evidence for the campaign's best, as JSON. Raises NotFound before the root qualified."""
    folded = rebuild(store.read(name), STATE, PERFORMANCE)
    state = folded[STATE]
    view = performance_table(state, folded[PERFORMANCE])
    if view is None:
        raise NotFound(f"{name} has no best yet: its root has not qualified")
    found = dossier(store.read(name), view.best)
    node, contract = state.implementations[view.best], state.specified().contract
    assert state.environment is not None, "a campaign opens with its environment"
    return {
        "campaign": name,
        "position": state.position,
        "implementation": node.id,
        "operator": contract.operator,
        "target": contract.target,
        "speedup_ratio": state.speedup_ratio,
        "contract": contract.model_dump(mode="json"),
        "environment": state.environment.model_dump(mode="json"),
        "workloads": _workloads(view),
        "baselines": [
            {"name": row.name, "root_ratio": row.root_ratio, "best_ratio": row.best_ratio} for row in view.baselines
        ],
        "checks": _checks(found.audit),
        "confirmation": None if node.measurement is None else node.measurement.model_dump(mode="json"),
        "mechanisms": list(node.mechanisms),
        "lineage": _lineage(found),
        "sources": [file.model_dump() for file in node.sources],
        "artifact": None if found.audit is None else found.audit.artifact,
        "events": [
            {"position": item.position, "type": type(item.event).__name__, "hash": store.hash_at(name, item.position)}
            for item in found.records
        ],
        "head": store.head(name).hash,
    }


def _workloads(view: PerformanceTable) -> list[dict[str, Any]]:
    return [
        {"workload": row.workload, "root_s": row.root_s, "best_s": row.best_s, "ratio": row.ratio} for row in view.rows
    ]


def _checks(audit: AuditCompleted | None) -> list[dict[str, Any]]:
    return [] if audit is None else [check._asdict() for check in audit.checks]


def _lineage(found: Dossier) -> list[dict[str, Any]]:
    """The implementation and all it derives from, nearest first, with what each measured."""
    nodes = (found.state.implementations[name] for name in found.state.ancestors(found.implementation))
    return [
        {
            "implementation": node.id,
            "parents": list(node.parents),
            "mechanisms": list(node.mechanisms),
            "promoted": node.promoted,
            "ratio": None if node.measurement is None else node.measurement.ratio,
            "speedup_ratio": None if node.measurement is None else node.measurement.speedup_ratio,
        }
        for node in nodes
    ]


def sources_of_best(store: Store, report: dict[str, Any]) -> dict[str, bytes]:
    """File name to bytes."""
    return {file["name"]: store.blob(file["digest"]) for file in report["sources"]}


def write_best(store: Store, name: str, folder: Path) -> dict[str, Any]:
    """Write sources and report into a new or empty folder, and return the report.

    A folder that holds exactly these sources already is brought up to date. Raises FolderTaken for any other, and
    OpsError where it cannot be written.
    """
    report = best_report(store, name)
    files = sources_of_best(store, report)
    try:
        _require_free(folder, files)
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_bytes(text)
        (folder / REPORT_JSON).write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        (folder / REPORT_MD).write_text("\n".join(report_lines(report)) + "\n", "utf-8")
    except OSError as error:
        raise OpsError(f"{folder} cannot be written: {error.strerror}") from error
    return report


def _require_free(folder: Path, files: dict[str, bytes]) -> None:
    if not folder.exists():
        return
    held = {path.name for path in folder.iterdir()}
    ours = held <= {*files, REPORT_JSON, REPORT_MD}
    if held and not (
        ours and all((folder / file).read_bytes() == text for file, text in files.items() if file in held)
    ):
        raise FolderTaken(f"{folder} holds files already, and they are not these sources")


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """The report for a reader, in Markdown."""
    yield f"# {report['operator']}: {report['implementation']} of {report['campaign']}"
    yield f"\n{times(report['speedup_ratio'])} of the root by weighted latency, in the confirmation's own blocks."
    yield "\n## Workloads\n\n| workload | root | best | ratio |\n|---|---|---|---|"
    for row in report["workloads"]:
        yield f"| {row['workload']} | {seconds(row['root_s'])} | {seconds(row['best_s'])} | {times(row['ratio'])} |"
    yield from _baseline_lines(report["baselines"])
    yield from _confirmation_lines(report["confirmation"])
    yield "\n## Checks\n"
    for check in report["checks"]:
        yield f"- {check['name']}: {'passed' if check['passed'] else 'FAILED'} ({check['cases']} cases)"
    yield "\n## Numerical contract\n"
    yield from (f"- {key}: {value}" for key, value in report["contract"]["numerical_contract"].items())
    yield "\n## Where it was measured\n"
    yield from (f"- {key}: {_flat(value)}" for key, value in report["environment"].items())
    yield "\n## Lineage, nearest first\n"
    yield from (_lineage_line(item) for item in report["lineage"])
    yield "\n## Sources\n"
    yield from (f"- `{file['name']}` sha256 `{file['digest']}`" for file in report["sources"])
    yield "\n## Events\n"
    yield from (f"- {item['position']} {item['type']} `{item['hash']}`" for item in report["events"])
    yield f"\nThe campaign's head at position {report['position']} is `{report['head']}`; to check it all:"
    yield f"`kernelbraid verify {report['campaign']} --head {report['head']}`"


def _baseline_lines(baselines: list[dict[str, Any]]) -> Iterator[str]:
    if baselines:
        yield "\n## Baselines, by the same clock\n"
    for row in baselines:
        against = f"{times(row['root_ratio'])} of the root; the best is {times(row['best_ratio'])} of it"
        yield f"- {row['name']}: {against}"


def _confirmation_lines(measurement: dict[str, Any] | None) -> Iterator[str]:
    if measurement is None:
        return
    yield "\n## Confirmation\n"
    for key in ("incumbent", "ratio", "upper_bound_ratio", "delta_ratio", "standard_error_ratio", "alpha"):
        yield f"- {key}: {measurement[key]}"
    yield from (f"- timing blocks: `{digest}`" for digest in measurement["blocks"])


def _lineage_line(item: dict[str, Any]) -> str:
    parents = " + ".join(item["parents"]) or "root"
    mark = ", promoted" if item["promoted"] else ""
    return f"- {item['implementation']} from {parents}{mark}: {', '.join(item['mechanisms']) or 'as declared'}"


def _flat(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
