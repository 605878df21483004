"""The committed JSON Schemas, and old schema versions made new on every read."""

from typing import ClassVar

import orjson
import pytest

from kernelbraid.events.codec import Codec
from kernelbraid.events.errors import EventInvalid
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.registry import BY_NAME
from kernelbraid.events.schemas import main, stale, write
from kernelbraid.events.upcasts import UPCASTS, Payload
from tests.events.factory import NOON


class LampLit(Event):
    """An event as it is today: version 3 measures in watts and knows the colour."""

    version: ClassVar[int] = 3
    power_w: float
    colour: str


def _colour_added(payload: Payload) -> Payload:
    return {**payload, "colour": "white"}


def _kilowatts_to_watts(payload: Payload) -> Payload:
    power_kw = payload.pop("power_kw")
    assert isinstance(power_kw, float)
    return {**payload, "power_w": power_kw * 1000}


LAMPS = Codec({"LampLit": LampLit}, {("LampLit", 1): _kilowatts_to_watts, ("LampLit", 2): _colour_added})


def stored(version: int, payload: Payload) -> bytes:
    """A lamp's stored bytes, as a kernelbraid of that schema version wrote them."""
    today = Recorded("c", 1, NOON, "user", 0, (1, 1), LampLit(power_w=1, colour="red"))
    return orjson.dumps({**orjson.loads(LAMPS.encode(today, "")), "version": version, "payload": payload})


def test_committed_schemas_are_current() -> None:
    assert stale() == (), "run python -m kernelbraid.events.schemas"
    assert main(["--check"]) == 0


def test_a_changed_a_missing_and_a_left_over_schema_are_stale_until_written(tmp_path) -> None:
    write(tmp_path)
    (tmp_path / "NoteAdded.json").write_text("{}")
    (tmp_path / "CampaignOpened.json").unlink()
    (tmp_path / "Gone.json").write_text("{}")

    assert stale(tmp_path) == ("CampaignOpened.json", "Gone.json", "NoteAdded.json")
    write(tmp_path)
    assert stale(tmp_path) == ()


def test_every_upcast_leads_to_a_version_that_exists() -> None:
    for name, version in UPCASTS:
        assert 1 <= version < BY_NAME[name].version


def test_every_old_version_has_its_upcast() -> None:
    due = {(name, version) for name, kind in BY_NAME.items() for version in range(1, kind.version)}
    assert due == set(UPCASTS)


def test_an_old_event_is_read_as_todays() -> None:
    old = LAMPS.decode(stored(1, {"power_kw": 0.06}))
    newer = LAMPS.decode(stored(2, {"power_w": 40.0}))

    assert old.event == LampLit(power_w=60.0, colour="white")
    assert newer.event == LampLit(power_w=40.0, colour="white")


def test_a_newer_event_is_refused_with_the_next_step() -> None:
    with pytest.raises(EventInvalid, match=r"schema version 4.*install a newer one"):
        LAMPS.decode(stored(4, {"power_w": 1.0, "colour": "red"}))


def test_a_missing_upcast_is_named() -> None:
    with pytest.raises(EventInvalid, match="no upcast leads LampLit from schema version 1 to 2"):
        Codec({"LampLit": LampLit}, {}).decode(stored(1, {"power_kw": 0.06}))


def test_a_usage_error_is_2(capsys) -> None:
    assert main(["--chek"]) == 2
    assert "usage" in capsys.readouterr().err
