"""`kernelbraid import`: take an exported campaign in."""

from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.events.errors import BlobMissing, CampaignExists, EventInvalid, LogDamaged
from kernelbraid.events.store import Store
from kernelbraid.ops.cli.options import Json, StoreUrl
from kernelbraid.ops.exits import ImportClash, ImportDamaged, NotFound
from kernelbraid.ops.terminal import emit, say
from kernelbraid.ops.wiring import session_of, writing


def import_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `export` wrote.")],
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Take an exported campaign into the store, all or nothing; every hash is checked and kept.

    Ancestors that came along only in part can be read and forked, not driven. A campaign that is there already must
    agree with the file; what the file has more is added.
    """
    if not file.is_file():
        raise NotFound(f"there is no file {file}: `kernelbraid export CAMPAIGN` writes one")
    with writing(session_of(context, store)) as log:
        names = _imported(log, file)
    if json:
        emit({"campaigns": list(names)})
        return
    for name in names:
        say(name)


def _imported(log: Store, file: Path) -> tuple[str, ...]:
    """The names taken in. What is wrong is wrong with the file, not with a campaign that `verify` could look at."""
    try:
        return log.import_(file)
    except (LogDamaged, EventInvalid, BlobMissing) as error:
        raise ImportDamaged(f"{file} is not as it was exported: {error}") from error
    except CampaignExists as error:
        raise ImportClash(str(error)) from error
