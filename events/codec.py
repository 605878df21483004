"""Events to stored bytes and back: one JSON object per event, whose exact bytes are what is hashed."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypedDict

import orjson
from pydantic import ValidationError

from kernelbraid.events.errors import EventInvalid, LogDamaged
from kernelbraid.events.event import Actor, Event, Recorded
from kernelbraid.events.registry import BY_NAME
from kernelbraid.events.trust import maker
from kernelbraid.events.upcasts import UPCASTS, Upcast, upcast


class Record(TypedDict):
    """The stored object. `previous` is the hash of the event before it, "" at position 1."""

    campaign: str
    position: int
    recorded_at: str
    actor: Actor
    cause: int
    batch: list[int]
    type: str
    version: int
    previous: str
    payload: bytes
    """JSON, not yet looked at: it is parsed and validated in one go."""


RECORD_FIELDS = Record.__required_keys__
_ENVELOPE_FIELDS = len(RECORD_FIELDS) - 1
_PAYLOAD = b',"payload":'
"""Ends the envelope: nothing in an envelope can hold it, and the payload is the record's last field."""


# A named tuple's own constructor is a Python function around this one.
_recorded = partial(tuple.__new__, Recorded)
_moment = datetime.fromisoformat


class Codec:
    """Encodes with today's schema versions and decodes every known one.

    `types` and `upcasts` are arguments so that a test may bring an event type of its own.
    """

    def __init__(
        self,
        types: Mapping[str, type[Event]] = BY_NAME,
        upcasts: Mapping[tuple[str, int], Upcast] = UPCASTS,
    ) -> None:
        self._types = types
        self._upcasts = upcasts
        # Looked up once per event read: the validator's bound method saves two attribute look-ups a million times.
        self._readers: dict[str, tuple[int, Callable[..., Event]]] = {
            name: (kind.version, kind.__pydantic_validator__.validate_json) for name, kind in types.items()
        }
        self._makers = {name: (kind.version, maker(kind)) for name, kind in types.items()}

    def encode(self, event: Recorded, previous: str) -> bytes:
        """Bytes to store after the event whose hash is `previous`.

        Raises EventInvalid for what would not read back equal: NaN or infinity (JSON has neither), text with a lone
        surrogate, a value that its own schema refuses.
        """
        payload = _dumped(event, event.event.model_dump(warnings=False))
        self._check_reads_back(event, payload)
        return _dumped(event, _record(event, previous, payload))

    def _check_reads_back(self, event: Recorded, payload: bytes) -> None:
        kind = type(event.event)
        if self._types.get(kind.__name__) is not kind:
            raise EventInvalid(f"{_place(event)} cannot be stored: its type is not in the union of events")
        try:
            same = self._readers[kind.__name__][1](payload, strict=True) == event.event
        except ValidationError as error:
            raise EventInvalid(
                f"{_place(event)} cannot be stored (NaN, infinity or a wrong value?): {error}"
            ) from error
        if not same:
            raise EventInvalid(f"{_place(event)} cannot be stored: it would not read back equal")

    def decode(self, state: bytes) -> Recorded:
        """The event that these bytes hold, at today's schema version. Raises EventInvalid, LogDamaged."""
        return self.decode_record(parsed(state))

    def decode_record(self, record: Record) -> Recorded:
        """The event of a parsed record. Raises EventInvalid for an unknown type, version or a refused payload."""
        try:
            name, version, payload = record["type"], record["version"], record["payload"]
            reader = self._readers.get(name)
            if reader is None:
                raise EventInvalid(f"no event type is called {name!r}: a newer kernelbraid may know it")
            today, validate = reader
            if version != today:
                payload = orjson.dumps(upcast(name, orjson.loads(payload), version, today, self._upcasts))
            index, size = record["batch"]
            return _recorded(
                (
                    record["campaign"],
                    record["position"],
                    _moment(record["recorded_at"]),
                    record["actor"],
                    record["cause"],
                    (index, size),
                    validate(payload, strict=True),
                )
            )
        except KeyError as error:
            raise EventInvalid(f"the record has no field {error}") from error
        except (TypeError, ValueError) as error:
            raise EventInvalid(f"{name} version {version} does not fit its schema: {error}") from error

    def trusted(self, state: bytes) -> Recorded:
        """What `decode` gives, faster, for bytes that it accepts; whether it does, somebody else has to find out.

        Raises EventInvalid for what cannot be read at all.
        """
        try:
            record = orjson.loads(state)
            today, make = self._makers[record["type"]]
            if record["version"] != today:
                return self.decode(state)
            index, size = record["batch"]
            return _recorded(
                (
                    record["campaign"],
                    record["position"],
                    _moment(record["recorded_at"]),
                    record["actor"],
                    record["cause"],
                    (index, size),
                    make(record["payload"]),
                )
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EventInvalid(f"the stored bytes cannot be read: {error}") from error


def parsed(state: bytes) -> Record:
    """The record that these bytes hold, its payload not yet looked at. Raises LogDamaged for anything else."""
    # SQLite keeps whatever an editor put there: text, for instance, which is not what was hashed.
    if not isinstance(state, bytes):
        raise LogDamaged(f"the stored value is {type(state).__name__}, not bytes")
    cut = state.find(_PAYLOAD)
    try:
        record: Record = orjson.loads(state if cut < 0 else state[:cut] + b"}")
    except orjson.JSONDecodeError as error:
        raise LogDamaged(f"the stored bytes are no JSON: {error}") from error
    # Counting the fields is quick, and enough to read: one that is not there raises KeyError. verify compares names.
    if cut < 0 or type(record) is not dict or len(record) != _ENVELOPE_FIELDS or not state.endswith(b"}"):
        raise LogDamaged("the stored bytes are no event record")
    record["payload"] = state[cut + len(_PAYLOAD) : -1]
    return record


def utc(moment: datetime) -> datetime:
    """The same moment in UTC. Raises ValueError for one without a time zone."""
    if moment.tzinfo is None:
        raise ValueError("recorded_at needs a time zone")
    return moment.astimezone(UTC)


def _record(event: Recorded, previous: str, payload: bytes) -> dict[str, object]:
    return {
        "campaign": event.campaign,
        "position": event.position,
        "recorded_at": event.recorded_at.isoformat(timespec="microseconds"),
        "actor": event.actor,
        "cause": event.cause,
        "batch": event.batch,
        "type": type(event.event).__name__,
        "version": event.event.version,
        "previous": previous,
        "payload": orjson.Fragment(payload),
    }


def _dumped(event: Recorded, value: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise EventInvalid(f"{_place(event)} cannot be stored (a lone surrogate is no valid text?): {error}") from error


def _place(event: Recorded) -> str:
    return f"{type(event.event).__name__} at {event.campaign} {event.position}"
