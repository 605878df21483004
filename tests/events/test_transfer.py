"""Campaigns as files: hashes kept, ancestors partial, anything wrong undoes all of it."""

import base64
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbraid.events import transfer
from kernelbraid.events.errors import (
    BlobMissing,
    CampaignExists,
    CampaignMissing,
    KernelbraidError,
    LogDamaged,
    NotDrivable,
    StoreError,
    StoreTooNew,
)
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.store import digest_of
from tests.events.conftest import OpenAt
from tests.events.factory import campaign_of, forked, iteration, log_of, notes, opening


@pytest.fixture
def told(store: SqliteStore) -> SqliteStore:
    """Campaign c of seven events, forked at 6 as d, which goes on; c goes on too."""
    campaign_of(store, "c")
    store.append("c", 1, iteration(1))
    store.fork("c", 6, "d", forked(store, "c", 6))
    store.append("d", 7, iteration(2))
    store.append("c", 6, notes("the origin goes on"))
    return store


@pytest.fixture
def other(tmp_path: Path, open_at: OpenAt) -> SqliteStore:
    """Another machine's store."""
    return open_at(tmp_path / "other.db")


def test_a_campaign_comes_back_with_every_hash_and_blob(told: SqliteStore, other: SqliteStore, tmp_path: Path) -> None:
    told.export("c", tmp_path / "c.gz")

    assert other.import_(tmp_path / "c.gz") == ("c",)

    assert other.head("c") == told.head("c")
    assert log_of(other, "c") == log_of(told, "c")
    assert [other.hash_at("c", n) for n in range(1, 8)] == [told.hash_at("c", n) for n in range(1, 8)]
    assert all(other.blob(digest_of(data)) == data for data in iteration(1).blobs)
    assert other.verify("c", head=told.head("c").hash).problems == ()
    other.append("c", 7, notes("driven on"))


def test_the_same_log_exports_to_the_same_bytes(told: SqliteStore, other: SqliteStore, tmp_path: Path) -> None:
    told.export("d", tmp_path / "one.gz")
    other.import_(tmp_path / "one.gz")
    other.export("d", tmp_path / "two.gz")

    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_a_forks_file_carries_its_ancestors_prefix_partial(
    told: SqliteStore, other: SqliteStore, tmp_path: Path
) -> None:
    told.export("d", tmp_path / "d.gz")

    assert other.import_(tmp_path / "d.gz") == ("c", "d")

    assert [(row.name, row.position, row.partial) for row in other.campaigns()] == [("c", 6, True), ("d", 12, False)]
    assert log_of(other, "d") == log_of(told, "d")
    assert other.verify("d").problems == other.verify("c").problems == ()
    with pytest.raises(NotDrivable, match="fork it, or import"):
        other.append("c", 6, notes("x"))
    other.fork("c", 6, "e", forked(other, "c", 6))
    other.append("d", 12, notes("driven on"))


def test_the_full_parent_extends_its_prefix(told: SqliteStore, other: SqliteStore, tmp_path: Path) -> None:
    told.export("d", tmp_path / "d.gz")
    told.export("c", tmp_path / "c.gz")
    other.import_(tmp_path / "d.gz")

    other.import_(tmp_path / "c.gz")

    assert log_of(other, "c") == log_of(told, "c")
    assert other.verify("c").problems == other.verify("d").problems == ()
    other.append("c", 7, notes("driven on"))


def test_a_prefix_never_takes_a_full_campaign_back(told: SqliteStore, other: SqliteStore, tmp_path: Path) -> None:
    told.export("d", tmp_path / "d.gz")
    told.export("c", tmp_path / "c.gz")
    other.import_(tmp_path / "c.gz")
    head = other.head("c")

    other.import_(tmp_path / "d.gz")
    other.import_(tmp_path / "c.gz")

    assert other.head("c") == head
    other.append("c", 7, notes("still drivable"))


def test_a_full_file_older_than_the_prefix_leaves_it_partial(
    told: SqliteStore, other: SqliteStore, tmp_path: Path
) -> None:
    told.export("c", tmp_path / "old.gz")
    told.append("c", 7, notes("later"))
    told.fork("c", 8, "e", forked(told, "c", 8))
    told.export("e", tmp_path / "e.gz")
    other.import_(tmp_path / "e.gz")

    other.import_(tmp_path / "old.gz")

    assert next((row.name, row.position, row.partial) for row in other.campaigns()) == ("c", 8, True)
    assert other.verify("e").problems == ()


def test_another_log_under_the_same_name_is_refused(told: SqliteStore, other: SqliteStore, tmp_path: Path) -> None:
    told.export("d", tmp_path / "d.gz")
    campaign_of(other, "c", notes_after=9)

    with pytest.raises(CampaignExists, match="another log named c"):
        other.import_(tmp_path / "d.gz")

    assert [row.name for row in other.campaigns()] == ["c"]


def test_another_origin_under_the_same_name_is_refused(told: SqliteStore, other: SqliteStore, tmp_path: Path) -> None:
    told.export("d", tmp_path / "d.gz")
    campaign_of(other, "d")

    with pytest.raises(CampaignExists, match="another log named d"):
        other.import_(tmp_path / "d.gz")

    assert [row.name for row in other.campaigns()] == ["d"]


def test_an_import_is_signed_with_the_stores_own_key(told: SqliteStore, open_at: OpenAt, tmp_path: Path) -> None:
    told.export("d", tmp_path / "d.gz")
    keyed = open_at(tmp_path / "keyed.db", hmac_key=b"key")

    keyed.import_(tmp_path / "d.gz")

    assert keyed.verify("d").problems == keyed.verify("c").problems == ()
    keyed.append("d", 12, notes("driven on"))


def test_a_store_in_memory_imports_too(told: SqliteStore, open_at: OpenAt, tmp_path: Path) -> None:
    told.export("d", tmp_path / "d.gz")
    memory = open_at(None)

    memory.import_(tmp_path / "d.gz")
    memory.import_(tmp_path / "d.gz")

    assert log_of(memory, "d") == log_of(told, "d")


def lines_of(path: Path) -> list[bytes]:
    """A file's lines, without their ends."""
    return gzip.decompress(path.read_bytes()).split(b"\n")[:-1]


def edited(line: bytes, **fields: object) -> bytes:
    """A JSON line with other fields."""
    return orjson.dumps({**orjson.loads(line), **fields})


def campaigns_edited(line: bytes, which: int, **fields: object) -> bytes:
    """A header whose campaign number `which` has other fields."""
    header = orjson.loads(line)
    header["campaigns"][which] = {**header["campaigns"][which], **fields}
    return orjson.dumps(header)


Lines = list[bytes]
WRONG: dict[str, tuple[Callable[[Lines], Lines], type[KernelbraidError]]] = {
    "an edited event": (lambda f: [f[0], edited(f[1], actor="brancher"), *f[2:]], LogDamaged),
    "a wrong link": (lambda f: [*f[:3], edited(f[3], previous="0" * 64), *f[4:]], LogDamaged),
    "a dropped event": (lambda f: [*f[:3], *f[4:]], LogDamaged),
    "swapped events": (lambda f: [*f[:3], f[4], f[3], *f[5:]], LogDamaged),
    "no events": (lambda f: f[:1], LogDamaged),
    "a missing end": (lambda f: f[:-1], LogDamaged),
    "more than its end": (lambda f: [*f, f[-1]], LogDamaged),
    "a blob of other bytes": (lambda f: [*f[:-1], edited(f[-1], data=base64.b64encode(b"x").decode())], LogDamaged),
    "a blob that is no base64": (lambda f: [*f[:-1], edited(f[-1], data="*")], LogDamaged),
    "a missing blob": (lambda f: [edited(f[0], blobs=orjson.loads(f[0])["blobs"] - 1), *f[1:-1]], BlobMissing),
    "another head": (lambda f: [campaigns_edited(f[0], 1, head="0" * 64), *f[1:]], LogDamaged),
    "another parent": (lambda f: [campaigns_edited(f[0], 1, parent="x"), *f[1:]], LogDamaged),
    "another start": (lambda f: [campaigns_edited(f[0], 1, start=6), *f[1:]], LogDamaged),
    "another name": (lambda f: [campaigns_edited(f[0], 1, name="x"), *f[1:]], LogDamaged),
    "a path for a name": (lambda f: [campaigns_edited(f[0], 1, name="../x"), *f[1:]], StoreError),
    "another format": (lambda f: [edited(f[0], format="tar"), *f[1:]], StoreError),
    "a newer format": (lambda f: [edited(f[0], version=99), *f[1:]], StoreTooNew),
    "a strange header": (lambda f: [edited(f[0], campaigns=7), *f[1:]], StoreError),
    "no header": (lambda f: [b"hello", *f[1:]], StoreError),
    "an event for an object": (lambda f: [f[0], b"[]", *f[2:]], LogDamaged),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_whole(told: SqliteStore, other: SqliteStore, tmp_path: Path, name: str) -> None:
    change, error = WRONG[name]
    told.export("d", tmp_path / "d.gz")
    (tmp_path / "wrong.gz").write_bytes(
        gzip.compress(b"".join(line + b"\n" for line in change(lines_of(tmp_path / "d.gz"))))
    )

    with pytest.raises(error):
        other.import_(tmp_path / "wrong.gz")

    assert other.campaigns() == ()
    assert not other.has_blob(digest_of(iteration(1).blobs[0]))


@pytest.mark.parametrize("cut", ["half", "no gzip", "one bit"])
def test_a_damaged_file_is_refused_whole(told: SqliteStore, other: SqliteStore, tmp_path: Path, cut: str) -> None:
    told.export("d", tmp_path / "d.gz")
    whole = (tmp_path / "d.gz").read_bytes()
    flipped = bytes([*whole[:900], whole[900] ^ 1, *whole[901:]])
    (tmp_path / "d.gz").write_bytes({"half": whole[: len(whole) // 2], "no gzip": b"hello", "one bit": flipped}[cut])

    with pytest.raises(KernelbraidError):
        other.import_(tmp_path / "d.gz")

    assert other.campaigns() == ()


def test_what_cannot_be_exported_leaves_no_file(told: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(CampaignMissing):
        told.export("x", tmp_path / "x.gz")
    with pytest.raises(StoreError, match="cannot be written"):
        told.export("c", tmp_path / "no" / "c.gz")
    with told.recorder.datastore.transaction(commit=True) as c:
        c.execute("DROP TRIGGER blobs_no_delete")
        c.execute("DELETE FROM blobs WHERE rowid = 2")
    with pytest.raises(BlobMissing):
        told.export("c", tmp_path / "c.gz")

    assert [path.name for path in tmp_path.iterdir() if "gz" in path.name] == []


def test_a_folder_or_a_device_is_never_written_over(told: SqliteStore, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for place in (tmp_path, Path("."), pipe):
        with pytest.raises(StoreError, match="name a file"):
            told.export("c", place)
    assert pipe.is_fifo()


def test_a_small_file_that_unpacks_to_a_huge_line_is_refused(
    other: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LINE_BYTES_MOST", 100_000)
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(b" " * 1_000_000))

    with pytest.raises(LogDamaged, match="more than 100000 bytes"):
        other.import_(file)


def test_a_damaged_log_is_not_exported(told: SqliteStore, tmp_path: Path) -> None:
    with told.recorder.datastore.transaction(commit=True) as c:
        c.execute("DROP TRIGGER stored_events_no_update")
        c.execute("UPDATE stored_events SET topic = 'EditFailed' WHERE originator_version = 3")

    with pytest.raises(LogDamaged, match="row 3"):
        told.export("c", tmp_path / "c.gz")


def test_a_missing_file_is_named(other: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no file"):
        other.import_(tmp_path / "nothing.gz")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=10))
def test_any_family_of_forks_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("family")
    store = SqliteStore(None)
    store.append("c0", 0, opening())
    names = ["c0"]
    for back, fork in steps:
        parent = names[max(0, len(names) - 1 - back)]
        at = store.position(parent)
        if fork:
            names.append(f"c{len(names)}")
            store.fork(parent, at, names[-1], forked(store, parent, at))
        else:
            store.append(parent, at, notes("on"))

    copy = SqliteStore(None)
    for name in names:
        store.export(name, folder / "one.gz")
        copy.import_(folder / "one.gz")

    assert copy.campaigns() == store.campaigns()
    assert all(copy.head(name) == store.head(name) for name in names)
    assert all(log_of(copy, name) == log_of(store, name) for name in names)
    store.close()
    copy.close()
