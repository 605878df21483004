"""What `verify` finds: every way to change a log by hand, each named."""

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from kernelbraid.events.chain import Examination, Verification, hash_of, mac_of
from kernelbraid.events.errors import LogDamaged, StoreError
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.store import digest_of
from tests.events.conftest import OpenAt
from tests.events.factory import campaign_of, forked, iteration, notes

Tamper = Callable[[sqlite3.Connection], None]
KEY = b"a key that the one who tampers lacks"
LAST = 11
"""Position of the last event: an opening, five notes, an iteration."""


def tamper(path: Path, change: Tamper) -> None:
    """Changes the file as somebody with an SQLite shell would, triggers out of the way."""
    database = sqlite3.connect(path)
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    change(database)
    database.commit()
    database.close()


def state_of(database: sqlite3.Connection, position: int, campaign: str = "c") -> bytes:
    """A row's bytes."""
    query = "SELECT state FROM stored_events WHERE originator_id = ? AND originator_version = ?"
    return bytes(database.execute(query, (campaign, position)).fetchone()[0])


def put(database: sqlite3.Connection, position: int, state: bytes) -> None:
    """Overwrites a row's bytes."""
    database.execute("UPDATE stored_events SET state = ? WHERE originator_version = ?", (state, position))


def edited(state: bytes, **fields: object) -> bytes:
    """A record with other fields, as valid as before."""
    return orjson.dumps({**orjson.loads(state), **fields})


def payload_changed(position: int) -> Tamper:
    def change(database: sqlite3.Connection) -> None:
        put(database, position, edited(state_of(database, position), actor="brancher"))

    return change


def deleted(*positions: int) -> Tamper:
    def change(database: sqlite3.Connection) -> None:
        for position in positions:
            database.execute("DELETE FROM stored_events WHERE originator_version = ?", (position,))

    return change


def swapped(one: int, other: int) -> Tamper:
    def change(database: sqlite3.Connection) -> None:
        first, second = state_of(database, one), state_of(database, other)
        put(database, one, second)
        put(database, other, first)

    return change


def renumbered_swap(one: int, other: int) -> Tamper:
    """A swap by somebody who also corrected the positions."""

    def change(database: sqlite3.Connection) -> None:
        first, second = state_of(database, one), state_of(database, other)
        put(database, one, edited(second, position=one))
        put(database, other, edited(first, position=other))

    return change


def appended(*, head: bool, key: bytes | None = None) -> Tamper:
    """One more row, correctly hashed, and the head record with it."""

    def change(database: sqlite3.Connection) -> None:
        last = state_of(database, LAST)
        state = edited(last, position=LAST + 1, previous=hash_of(last), batch=[1, 1])
        kind = orjson.loads(last)["type"]
        database.execute("INSERT INTO stored_events VALUES ('c', ?, ?, ?)", (LAST + 1, kind, state))
        if head:
            mac = mac_of(key, "c", LAST + 1, hash_of(state)) if key else None
            database.execute("UPDATE heads SET position = ?, hash = ?, mac = ?", (LAST + 1, hash_of(state), mac))

    return change


def cut(position: int, *, head: bool) -> Tamper:
    """The rows after `position` removed, and the head record put back with them."""

    def change(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM stored_events WHERE originator_version > ?", (position,))
        if head:
            found = hash_of(state_of(database, position))
            database.execute("UPDATE heads SET position = ?, hash = ?", (position, found))

    return change


def rehashed_from(position: int) -> Tamper:
    """One payload changed and every later hash computed anew, head included: nothing inside the file disagrees."""

    def change(database: sqlite3.Connection) -> None:
        state = edited(state_of(database, position), actor="brancher")
        put(database, position, state)
        for later in range(position + 1, LAST + 1):
            state = edited(state_of(database, later), previous=hash_of(state))
            put(database, later, state)
        database.execute("UPDATE heads SET hash = ?", (hash_of(state),))

    return change


def sql(statement: str) -> Tamper:
    def change(database: sqlite3.Connection) -> None:
        database.execute(statement)

    return change


@pytest.fixture(scope="module", params=[None, KEY], ids=["unkeyed", "keyed"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes | None, str]:
    """A store with campaign c, its key and its head's hash."""
    path = tmp_path_factory.mktemp("sound") / "store.db"
    store = SqliteStore(path, hmac_key=request.param, synchronous="NORMAL")
    campaign_of(store, "c", notes_after=5)
    store.append("c", 6, iteration(1))
    head = store.head("c").hash
    store.close()
    return path, request.param, head


def verified_after(sound: tuple[Path, bytes | None, str], folder: Path, change: Tamper, **how: str) -> Verification:
    """What verify says about a copy that was tampered with."""
    path = folder / "copy.db"
    shutil.copyfile(sound[0], path)
    tamper(path, change)
    store = SqliteStore(path, hmac_key=sound[1], synchronous="NORMAL")
    try:
        return store.verify("c", **how)
    finally:
        store.close()


def test_a_sound_log_has_no_problems(sound: tuple[Path, bytes | None, str], tmp_path: Path) -> None:
    verification = verified_after(sound, tmp_path, lambda _: None, head=sound[2])

    assert verification == Verification("c", LAST, sound[2], ())


NAMED = {
    "a changed row": (payload_changed(4), [(4, "changed")]),
    "the first row": (payload_changed(1), [(1, "changed")]),
    "the last row": (payload_changed(LAST), [(LAST, "changed")]),
    "two rows": (lambda d: (payload_changed(3)(d), payload_changed(8)(d)), [(3, "changed"), (8, "changed")]),
    "a changed link": (lambda d: put(d, 5, edited(state_of(d, 5), previous="0" * 64)), [(5, "neither neighbour")]),
    "a deleted row": (deleted(4), [(4, "row 4 is missing")]),
    "deleted rows": (deleted(4, 5), [(4, "rows 4 to 5 are missing")]),
    "a deleted first row": (deleted(1), [(1, "row 1 is missing")]),
    "a cut tail": (cut(9, head=False), [(10, "rows 10 to 11 are missing")]),
    "a cut last row": (deleted(LAST), [(LAST, "missing")]),
    "swapped rows": (swapped(3, 5), [(3, "record of c 5"), (5, "record of c 3")]),
    "a swap that corrects positions": (renumbered_swap(3, 5), [(3, "neither"), (4, "neither"), (5, "neither")]),
    "an appended row": (appended(head=False), [(LAST + 1, "outside 1 to 11")]),
    "another type column": (
        sql("UPDATE stored_events SET topic = 'EditFailed' WHERE originator_version = 4"),
        [(4, "filed as")],
    ),
    "text for bytes": (
        sql("UPDATE stored_events SET state = replace(state, 'note 2', 'note 8') WHERE originator_version = 4"),
        [(4, "not bytes")],
    ),
    "garbage": (lambda d: put(d, 4, b"\xff{"), [(4, "no JSON")]),
    "another object": (lambda d: put(d, 4, b"{}"), [(4, "no event record")]),
    "other fields": (
        lambda d: put(d, 4, b'{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1}'),
        [(4, "cannot be read")],
    ),
    "an unknown type": (lambda d: put(d, 4, edited(state_of(d, 4), type="Rumour")), [(4, "filed as")]),
    "a cut batch": (cut(9, head=True), [(9, "within a batch")]),
}


@pytest.mark.parametrize("name", NAMED)
def test_every_change_is_named(sound: tuple[Path, bytes | None, str], tmp_path: Path, name: str) -> None:
    change, expected = NAMED[name]

    problems = [problem for problem in verified_after(sound, tmp_path, change).problems if "HMAC" not in problem.what]

    assert [problem.position for problem in problems] == [position for position, _ in expected]
    for problem, (_, word) in zip(problems, expected, strict=True):
        assert word in problem.what


REWRITTEN = {
    "a cut tail": (cut(6, head=True), "nowhere in the log"),
    "an appended row": (appended(head=True), "noted head is position 11: 1 events came after"),
    "a rehashed log": (rehashed_from(4), "nowhere in the log"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_rewritten_head_is_found_by_the_noted_hash(
    sound: tuple[Path, bytes | None, str], tmp_path: Path, name: str
) -> None:
    change, word = REWRITTEN[name]

    problems = verified_after(sound, tmp_path, change, head=sound[2]).problems

    assert any(word in problem.what for problem in problems)


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_rewritten_head_is_found_by_the_key_and_only_by_it(
    sound: tuple[Path, bytes | None, str], tmp_path: Path, name: str
) -> None:
    problems = verified_after(sound, tmp_path, REWRITTEN[name][0]).problems

    # Without a key this is what an unkeyed store cannot show.
    assert bool(problems) == (sound[1] is not None)
    assert all("HMAC" in problem.what for problem in problems)


def test_a_head_signed_with_another_key_is_found(tmp_path: Path, open_at: OpenAt) -> None:
    store = open_at(tmp_path / "s.db", hmac_key=KEY)
    campaign_of(store, "c", notes_after=5)
    store.append("c", 6, iteration(1))
    store.close()

    tamper(tmp_path / "s.db", appended(head=True, key=b"a guess"))

    assert [p.what for p in open_at(tmp_path / "s.db", hmac_key=KEY).verify("c").problems] == [
        "the head record's HMAC does not match the key: it was rewritten without it"
    ]


def test_a_prefix_passed_off_as_a_whole_campaign_is_found_by_the_key(tmp_path: Path, open_at: OpenAt) -> None:
    origin = open_at(tmp_path / "origin.db")
    campaign_of(origin, "c")
    origin.fork("c", 1, "d", forked(origin, "c", 1))
    origin.export("d", tmp_path / "d.gz")
    store = open_at(tmp_path / "s.db", hmac_key=KEY)
    store.import_(tmp_path / "d.gz")
    assert store.verify("c").problems == ()
    store.close()

    tamper(tmp_path / "s.db", sql("UPDATE heads SET partial = 0 WHERE campaign = 'c'"))
    store = open_at(tmp_path / "s.db", hmac_key=KEY)

    assert [problem.what.split(":")[0] for problem in store.verify("c").problems] == [
        "the head record's HMAC does not match the key"
    ]
    with pytest.raises(LogDamaged, match="HMAC"):
        store.append("c", 1, notes("x"))


def test_an_append_needs_the_key_its_campaign_began_with(tmp_path: Path, open_at: OpenAt) -> None:
    campaign_of(open_at(tmp_path / "s.db", hmac_key=KEY), "keyed")
    campaign_of(open_at(tmp_path / "s.db"), "unkeyed")

    with pytest.raises(StoreError, match="KERNELBRAID_HMAC_KEY"):
        open_at(tmp_path / "s.db").append("keyed", 1, notes("x"))
    for name, key in (("keyed", b"wrong"), ("unkeyed", KEY)):
        with pytest.raises(LogDamaged, match="HMAC"):
            open_at(tmp_path / "s.db", hmac_key=key).append(name, 1, notes("x"))


BLOBS = {
    "changed": (sql("UPDATE blobs SET data = x'00'"), "was changed"),
    "of other bytes": (
        sql("UPDATE blobs SET data = (SELECT data FROM blobs ORDER BY rowid LIMIT 1)"),
        "another digest",
    ),
    "missing": (sql("DELETE FROM blobs"), "is not in"),
}


@pytest.mark.parametrize("name", BLOBS)
def test_a_blob_that_is_not_what_it_was_is_named(
    sound: tuple[Path, bytes | None, str], tmp_path: Path, name: str
) -> None:
    change, word = BLOBS[name]

    problems = verified_after(sound, tmp_path, change).problems

    source = digest_of(iteration(1).blobs[0])
    assert any(problem.position == 9 and source in problem.what and word in problem.what for problem in problems)
    assert {problem.position for problem in problems} <= {1, 9, 10}


def test_a_missing_head_record_is_named(sound: tuple[Path, bytes | None, str], tmp_path: Path) -> None:
    problems = verified_after(sound, tmp_path, sql("DELETE FROM heads")).problems

    assert [problem.what for problem in problems] == ["the head record of c is missing, rows of it are there"]


@pytest.mark.parametrize("origin", ["c", "gone"])
def test_an_origin_that_cannot_be_is_named(sound: tuple[Path, bytes | None, str], tmp_path: Path, origin: str) -> None:
    problems = verified_after(sound, tmp_path, sql(f"UPDATE heads SET parent = '{origin}'")).problems

    assert [problem.what.split(":")[0] for problem in problems] == ["an ancestor's head record is missing or wrong"]


@pytest.mark.parametrize("change", ["position = 'x'", "hash = x'00'", "mac = x'00'", "start = 'x'"])
def test_a_head_record_of_any_content_is_damage_and_no_crash(
    sound: tuple[Path, bytes | None, str], tmp_path: Path, change: str
) -> None:
    path = tmp_path / "copy.db"
    shutil.copyfile(sound[0], path)
    tamper(path, sql(f"UPDATE heads SET {change}"))
    store = SqliteStore(path, hmac_key=sound[1], synchronous="NORMAL")

    with pytest.raises(LogDamaged, match="head record of c was changed"):
        store.verify("c")
    store.close()


def test_a_mac_in_other_letters_is_damage(sound: tuple[Path, bytes | None, str], tmp_path: Path) -> None:
    problems = verified_after(sound, tmp_path, sql("UPDATE heads SET mac = '\u00fc'")).problems

    assert [problem.what.split(":")[0] for problem in problems] == (
        ["the head record's HMAC does not match the key"] if sound[1] else []
    )


REFUSED_WRITES = {
    "an update": "UPDATE stored_events SET topic = 'x'",
    "a deletion": "DELETE FROM stored_events",
    "another row at a position": (
        "INSERT OR REPLACE INTO stored_events SELECT originator_id, originator_version, 'x', state FROM stored_events"
    ),
    "a new position in an old row": (
        "INSERT OR REPLACE INTO stored_events (rowid, originator_id, originator_version, topic, state) "
        "VALUES (3, 'c', 12, 'x', x'00')"
    ),
    "an upsert": "INSERT INTO stored_events VALUES ('c', 3, 'x', x'00') ON CONFLICT DO UPDATE SET topic = 'x'",
    "another blob under a digest": "INSERT OR REPLACE INTO blobs SELECT digest, x'00' FROM blobs",
    "another blob in an old row": "INSERT OR REPLACE INTO blobs (rowid, digest, data) VALUES (1, x'00', x'00')",
    "a head taken away": "DELETE FROM heads",
    "a head put in its place": (
        "INSERT OR REPLACE INTO heads SELECT campaign, 3, hash, mac, start, parent, partial FROM heads"
    ),
    "a head put back": "UPDATE heads SET position = 3",
    "a head under another name": "UPDATE heads SET campaign = 'd'",
    "a head with another origin": "UPDATE heads SET parent = 'd'",
}


@pytest.mark.parametrize("name", REFUSED_WRITES)
def test_the_database_itself_refuses(sound: tuple[Path, bytes | None, str], tmp_path: Path, name: str) -> None:
    path = tmp_path / "copy.db"
    shutil.copyfile(sound[0], path)
    database = sqlite3.connect(path)

    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        database.execute(REFUSED_WRITES[name])
    database.close()


def test_a_changed_ancestor_is_found_from_its_fork(tmp_path: Path, open_at: OpenAt) -> None:
    store = open_at(tmp_path / "s.db")
    campaign_of(store, "c", notes_after=5)
    store.fork("c", 4, "d", forked(store, "c", 4))
    store.close()

    tamper(tmp_path / "s.db", payload_changed(3))

    assert [problem.position for problem in open_at(tmp_path / "s.db").verify("d").problems] == [3]


@pytest.mark.parametrize("change", ["parent = 'b'", "start = 4", "parent = 'gone'"])
def test_a_head_record_that_lies_about_the_origin_is_found(tmp_path: Path, open_at: OpenAt, change: str) -> None:
    store = open_at(tmp_path / "s.db")
    campaign_of(store, "c", notes_after=5)
    campaign_of(store, "b", notes_after=5)
    store.fork("c", 4, "d", forked(store, "c", 4))
    store.close()

    tamper(tmp_path / "s.db", sql(f"UPDATE heads SET {change} WHERE campaign = 'd'"))

    assert open_at(tmp_path / "s.db").verify("d").problems


def test_any_changed_byte_of_any_row_is_found_at_its_row() -> None:
    store = SqliteStore(None)
    campaign_of(store, "c", notes_after=3)
    rows, head = list(store.rows("c", 1, None)), store.head("c")
    store.close()

    for changed in rows:
        for index in range(len(changed.state)):
            for mask in (1, 3, 128):
                state = bytearray(changed.state)
                state[index] ^= mask
                exam = Examination(store.codec)
                for row in rows:
                    exam.look(replace(row, state=bytes(state)) if row is changed else row, "c")
                exam.close(head)
                assert {problem.position for problem in exam.problems} == {changed.position}, bytes(state)
