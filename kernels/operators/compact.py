"""The short forms of an operator.toml, written out in full before anything reads them.

entry      `symbols = { full = "...", decode = "..." }` instead of `symbol` and `path`: two entries, alike otherwise
workload   a table `shapes` of name to dims, instead of `name` and `dims`: one workload a shape
check      a list of dims: one check for each, in every one of its styles
hidden     likewise, and so is beyond
pairs      a check, hidden range or beyond need not name `full` and `decode` where there is one entry of each path
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Table = Mapping[str, Any]


def written_out(tables: Table) -> dict[str, Any]:
    """The same tables in the long form alone. Raises ValueError where a short form cannot be told apart."""
    entries = [each for item in tables["entry"] for each in _entries(item)]
    pair = _only_pair(entries)
    return {
        **tables,
        "entry": entries,
        "workload": [each for item in tables["workload"] for each in _workloads(item)],
        "check": list(_each_dims(tables["check"], pair)),
        "hidden": list(_each_dims(tables.get("hidden", []), pair)),
        "beyond": list(_each_dims(tables.get("beyond", []), pair)),
    }


def _entries(item: Table) -> Iterator[Table]:
    if "symbols" not in item:
        yield item
        return
    if doubled := {"symbol", "path"} & set(item):
        raise ValueError(f"an entry with symbols names no {' or '.join(sorted(doubled))}")
    shared = {key: value for key, value in item.items() if key != "symbols"}
    yield from ({**shared, "symbol": symbol, "path": path} for path, symbol in item["symbols"].items())


def _workloads(item: Table) -> Iterator[Table]:
    if "shapes" not in item:
        yield item
        return
    if doubled := {"name", "dims"} & set(item):
        raise ValueError(f"a workload with shapes has no {' or '.join(sorted(doubled))} beside them")
    shared = {key: value for key, value in item.items() if key != "shapes"}
    yield from ({**shared, "name": name, "dims": dims} for name, dims in item["shapes"].items())


def _each_dims(items: Iterable[Table], pair: Table) -> Iterator[Table]:
    for item in items:
        every = item["dims"] if isinstance(item["dims"], list) else [item["dims"]]
        yield from ({**pair, **item, "dims": dims} for dims in every)


def _only_pair(entries: Iterable[Table]) -> Table:
    """The one full and the one decode entry; nothing where there are more, and a pair must name its own."""
    of_path: dict[str, list[str]] = {}
    for entry in entries:
        of_path.setdefault(entry["path"], []).append(entry["symbol"])
    pair = {path: of_path[path][0] for path in ("full", "decode") if len(of_path.get(path, ())) == 1}
    return pair if len(pair) == 2 else {}
