"""JSON Schemas of the events, one file per type: `python -m kernelbraid.events.schemas [--check]` writes or compares.

They are generated from the classes, and committed so that a change of the log's form shows in review.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from kernelbraid.events.event import Event
from kernelbraid.events.registry import BY_NAME

FOLDER = Path(__file__).parent / "schemas"


def schema_text(kind: type[Event]) -> bytes:
    """One event type's JSON Schema, with its schema version, as the bytes of its file."""
    schema = {"title": kind.__name__, "x-version": kind.version, **kind.model_json_schema(mode="serialization")}
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def stale(folder: Path = FOLDER, types: Mapping[str, type[Event]] = BY_NAME) -> tuple[str, ...]:
    """Names of schema files that are missing, different, or of no event any more."""
    due = {f"{name}.json": schema_text(kind) for name, kind in types.items()}
    found = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    return tuple(sorted(name for name in due.keys() | found.keys() if due.get(name) != found.get(name)))


def write(folder: Path = FOLDER, types: Mapping[str, type[Event]] = BY_NAME) -> tuple[str, ...]:
    """Writes what is stale and removes what is of no event; returns the names it touched."""
    touched = stale(folder, types)
    folder.mkdir(exist_ok=True)
    for name in touched:
        kind = types.get(name.removesuffix(".json"))
        if kind is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(schema_text(kind))
    return touched


def main(arguments: Sequence[str]) -> int:
    """The command: 0 if the files are (now) current, 1 if --check found stale ones, 2 for other arguments."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: python -m kernelbraid.events.schemas [--check]\n")
        return 2
    names = stale() if arguments else write()
    for name in names:
        sys.stdout.write(f"{'stale' if arguments else 'written'}: {name}\n")
    return 1 if arguments and names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
