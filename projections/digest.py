"""A digest of everything a log amounts to: equal logs have equal digests, on any machine and after any export."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from typing import Any

import orjson

from kernelbraid.events.event import Value
from kernelbraid.events.state import State

STATE_VIEW = 2
"""Raised whenever the fold's meaning changes, so that digests of different views are never compared in silence."""

CHUNK_ROWS = 512
FOLD_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
ROW_TABLES = frozenset({"implementations", "opportunities", "actions"})


def state_digest(state: State) -> str:
    """SHA-256 in hex over the whole canonical state, its view's version and the names of its fields.

    Every field of the state counts, `recorded_at` and `active_s` included, as the log holds them. Ordered sets count
    with their order, which is the log's; the keys of plain mappings are sorted. Bytes are canonical JSON already.
    """
    digest = hashlib.sha256(_canonical([STATE_VIEW, _field_names(type(state))]))
    for part in _parts(state):
        digest.update(b"\n")
        digest.update(_canonical(part))
    return digest.hexdigest()


def fold_digest(folded: object) -> str:
    """SHA-256 in hex over another projection's accumulator, a dataclass or a sequence, with the order of its dicts."""
    digest = hashlib.sha256()
    for content in _contents(folded) if is_dataclass(folded) else [folded]:
        for piece in _pieces(content):
            digest.update(orjson.dumps(piece, default=_plain_fold, option=FOLD_OPTIONS))
            digest.update(b"\n")
    return digest.hexdigest()


def _pieces(content: object) -> Iterator[object]:
    if not isinstance(content, dict | list | deque):
        yield content
        return
    rows = iter(content.items() if isinstance(content, dict) else content)
    yield len(content)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield chunk


def _contents(record: object) -> list[object]:
    kind = type(record)
    names = _names.get(kind) or _names.setdefault(kind, _field_names(kind))
    return [getattr(record, name) for name in names]


_names: dict[type, tuple[str, ...]] = {}
"""Fields by dataclass, since looking them up takes longer than reading them."""


def _plain_fold(value: object) -> object:
    if isinstance(value, type):
        return value.__name__
    if is_dataclass(value):
        return [list(content.items()) if isinstance(content, dict) else content for content in _contents(value)]
    return list(value) if isinstance(value, tuple) else _plain(value)


def _parts(state: State) -> Iterator[list[Any]]:
    for name in _field_names(type(state)):
        content = getattr(state, name)
        if name in ROW_TABLES:
            yield from _chunks(content.values())
        elif isinstance(content, dict):
            yield [name, list(content.items())]
        else:
            yield [name, content]


def _chunks(records: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(records)
    while chunk := list(islice(remaining, CHUNK_ROWS)):
        yield list(map(_row_of(type(chunk[0])), chunk))


def _row_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*_field_names(kind))


def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _canonical(content: list[Any]) -> bytes:
    return orjson.dumps(content, default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return orjson.Fragment(value)
    if isinstance(value, Value):
        return vars(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"the state holds a {type(value).__name__}, which has no canonical form")
