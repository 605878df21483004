"""A private temporary folder, named after its process so that what a killed one left can be removed."""

import os
import re
import shutil
import tempfile
from pathlib import Path

_PREFIX = "kernelbraid-audit-"
_NAMESPACE = Path("/proc/self/ns/pid")


def scratch_folder() -> Path:
    """A new folder that only this user can enter; older ones whose process is gone are removed.

    A container that shares the temporary folder counts its processes anew, so that nothing here says whether one of
    them lives: only folders of this process's own namespace are looked at.
    """
    base, mine = Path(tempfile.gettempdir()), f"{_PREFIX}{_namespace()}-"
    for path in base.glob(f"{mine}*"):
        owner = re.match(r"(\d+)-", path.name.removeprefix(mine))
        if owner and path.lstat().st_uid == os.getuid() and not _alive(int(owner[1])):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{mine}{os.getpid()}-", dir=base))


def _namespace() -> str:
    """The number of this process's namespace of process ids; 0 where the kernel does not tell."""
    try:
        return re.sub(r"\D", "", os.readlink(_NAMESPACE)) or "0"
    except OSError:
        return "0"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
