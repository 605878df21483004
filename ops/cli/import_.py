"""`kernelbraid import`: take an exported campaign in."""

from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.ops.cli.options import Json, StoreUrl
from kernelbraid.ops.exits import NotFound
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
        names = log.import_(file)
    if json:
        emit({"campaigns": list(names)})
        return
    for name in names:
        say(name)
