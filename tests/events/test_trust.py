"""Events taken on trust equal those that validation makes, for whatever validation accepts."""

from pathlib import Path

import orjson
import pytest
from pydantic import BaseModel

from kernelbraid.events.codec import Codec
from kernelbraid.events.errors import EventInvalid
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.trust import maker
from tests.events.factory import NOON, audited, opened, proposed, raised, submitted
from tests.events.test_upcasts import HEADS, LOGS

CODEC = Codec()
EVENTS = (opened(), raised(), proposed(), submitted(1, b"int a;"), audited(1, blocks=(b"b",), log=b"l"))


def stored(event: Event) -> bytes:
    return CODEC.encode(Recorded("c", 1, NOON, "user", 0, (1, 1), event), "")


@pytest.mark.parametrize("name", HEADS)
def test_an_old_log_reads_the_same_on_trust(name: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "old.db")
    store.import_(LOGS / f"{name}.kernelbraid")

    trusted, checked = list(store.read(name, checked=False)), list(store.read(name))

    assert trusted == checked
    assert list(map(repr, trusted)) == list(map(repr, checked))
    store.close()


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_on_trust_is_the_event_in_every_respect(event: Event) -> None:
    taken = CODEC.trusted(stored(event)).event

    assert taken == event
    assert taken.model_dump() == event.model_dump()
    assert taken.model_copy() == event
    assert taken.model_fields_set == type(event).model_validate(event.model_dump()).model_fields_set


def test_a_whole_number_in_the_place_of_a_fraction_is_one() -> None:
    """Another encoder may write 1 for 1.0; a digest must not depend on who read it."""
    whole = stored(audited(1, blocks=(b"b",))).replace(b"1.0", b"1")
    assert whole != stored(audited(1, blocks=(b"b",)))

    assert orjson.dumps(_plain(CODEC.trusted(whole).event)) == orjson.dumps(_plain(CODEC.decode(whole).event))


def test_a_field_younger_than_its_log_has_its_default() -> None:
    older = orjson.loads(stored(raised().model_copy()))
    payload = orjson.loads(stored(audited(1)))["payload"]
    del payload["resources"]
    older |= {"type": "AuditCompleted", "version": 4, "payload": payload}

    taken = CODEC.trusted(orjson.dumps(older))

    assert taken == CODEC.decode(orjson.dumps(older))


def test_what_cannot_be_read_is_refused() -> None:
    for wrong in (b"{", b"[]", b'{"type": "Unheard"}', stored(audited(1)).replace(b'"no_gain"', b'"sideways"')):
        with pytest.raises(EventInvalid):
            CODEC.trusted(wrong)


def test_a_payload_that_json_cannot_tell_is_no_events() -> None:
    class Odd(Event):
        when: BaseModel

    with pytest.raises(TypeError, match="no payload"):
        maker(Odd)


def test_stored_payloads_have_jsons_own_types() -> None:
    """Numbers as text are not what a store writes, and would read one way here and another way there."""
    text = stored(raised()).replace(b'"expected_gain_ratio":1.5', b'"expected_gain_ratio":"1.5"')

    with pytest.raises(EventInvalid, match="expected_gain_ratio"):
        CODEC.decode(text)


def _plain(event: Event) -> dict[str, object]:
    return event.model_dump(mode="json")
