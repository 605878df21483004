"""A private temporary folder, named after its process so that what a killed one left can be removed."""

import os
import re
import shutil
import tempfile
from pathlib import Path

_PREFIX = "kernelbraid-audit-"
_OURS = re.compile(rf"{_PREFIX}(\d+)-")


def scratch_folder() -> Path:
    """A new folder that only this user can enter; older ones whose process is gone are removed."""
    base = Path(tempfile.gettempdir())
    for path in base.glob(f"{_PREFIX}*"):
        if (match := _OURS.match(path.name)) and path.lstat().st_uid == os.getuid() and not _alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
