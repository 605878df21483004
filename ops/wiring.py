"""What a command works with, in one place, so that a test may bring its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from kernelbraid.agents.search import HarnessFactory, Strategies
from kernelbraid.events.errors import StoreReadOnly
from kernelbraid.events.store import DEFAULT_URL, STORE_VARIABLE, CampaignRow, Store, driver_of, open_store
from kernelbraid.ops.exits import NotFound

MEMORY_URLS = (":memory:", "sqlite://", "sqlite:///:memory:")


@dataclass(frozen=True, slots=True)
class Wiring:
    """Stand-ins for the machine's harness and the catalogue's strategies; None takes the real ones."""

    harness: HarnessFactory | None = None
    strategies: Strategies | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One invocation: the store asked for, and the wiring."""

    url: str | None = None
    wiring: Wiring = Wiring()


def session_of(context: typer.Context, store: str | None) -> Session:
    """The invocation's session; a command's own --store goes before the global one."""
    found = context.find_root().obj
    session = found if isinstance(found, Session) else Session()
    return session if store is None else Session(store, session.wiring)


@contextmanager
def writing(session: Session) -> Iterator[Store]:
    """The store, created if it is not there."""
    store = open_store(session.url)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def changing(session: Session) -> Iterator[Store]:
    """The store, which must be there, open for appends."""
    require_store(session.url)
    with writing(session) as store:
        yield store


@contextmanager
def reading(session: Session) -> Iterator[Store]:
    """The store, which must be there and may be read-only; a command that only reads never creates one."""
    store = _open_to_read(session.url)
    try:
        yield store
    finally:
        store.close()


def _open_to_read(url: str | None) -> Store:
    """Opened for writing where that works, so that the driver's lease can be looked at; else read-only."""
    require_store(url)
    try:
        return open_store(url)
    except StoreReadOnly:
        return open_store(url, read_only=True)


def require_store(url: str | None) -> None:
    """Raises NotFound when the file that the URL names is not there."""
    url = url or os.environ.get(STORE_VARIABLE) or DEFAULT_URL
    path = Path(url.removeprefix("sqlite:///"))
    if (url.startswith("sqlite:///") or "://" not in url) and url not in MEMORY_URLS and not path.exists():
        raise NotFound(f"there is no store at {path}: `kernelbraid run OPERATOR` begins one, --store names another")


def driven(store: Store, campaign: str) -> bool:
    """Whether somebody drives the campaign now; a store that cannot be written has no driver."""
    try:
        return driver_of(store, campaign) is not None
    except StoreReadOnly:
        return False


def campaign_row(store: Store, name: str) -> CampaignRow:
    """The campaign's row. Raises NotFound, naming the campaigns that come closest."""
    rows = store.campaigns()
    for row in rows:
        if row.name == name:
            return row
    known = ", ".join(row.name for row in rows[:8]) or "none"
    raise NotFound(f"there is no campaign {name} in {store.url}; there are: {known}")


def store_words(store: Store) -> str:
    """The --store option that finds this store again from here; nothing where it is found without."""
    folder = store_folder(store)
    if folder is None:
        return ""
    path = folder / Path(store.url).name
    usual = os.environ.get(STORE_VARIABLE) or DEFAULT_URL
    found = Path(usual.removeprefix("sqlite:///")).resolve() == path
    return "" if found else f" --store sqlite:///{from_here(path)}"


def from_here(path: Path) -> Path:
    """The path as seen from the working folder, if it is in there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def store_folder(store: Store) -> Path | None:
    """The folder that holds the store's file; None for a store in memory."""
    path = store.url.removeprefix("sqlite:///")
    return None if path == store.url else Path(path).parent
