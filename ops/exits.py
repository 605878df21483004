"""How a command ends: one table from every expected failure to its exit code and the next step."""

from dataclasses import dataclass
from enum import IntEnum

from kernelbraid.agents.audit import SourcesMissing
from kernelbraid.agents.outside import OffspringRefused, SandboxMissing
from kernelbraid.agents.search import PolicyRefused
from kernelbraid.events.errors import (
    BlobMissing,
    CampaignExists,
    CampaignMissing,
    Conflict,
    DriverPresent,
    EventInvalid,
    FileRefused,
    KernelbraidError,
    LogDamaged,
    NameRefused,
    NotDrivable,
    PositionMissing,
    RuleBroken,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
)
from kernelbraid.kernels.operators.operator import OperatorError, OperatorMissing, TargetMissing
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain


class ExitCode(IntEnum):
    """What the shell is told."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    MISMATCH = 4
    DRIVEN = 5
    INTERRUPTED = 130


class OpsError(KernelbraidError):
    """A command cannot do what was asked, for a reason of its own."""


class NotFound(OpsError):
    """What was named is not there."""


class Unavailable(OpsError):
    """An option names something that this version does not do."""


class FolderTaken(OpsError):
    """A folder to write into holds something already."""


class ImportDamaged(OpsError):
    """A file to import is an export, but not as it was written."""


class ImportClash(OpsError):
    """The store holds another log under the name that a file brings."""


class PortTaken(OpsError):
    """The metrics cannot be served on that port."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An exit code, and the step that usually helps."""

    code: ExitCode
    next_step: str = ""


EXPECTED: tuple[type[Exception], ...] = (KernelbraidError, OperatorError, MissingToolchain)
"""What a command reports without a traceback."""

# The first row whose type fits is taken, so a subclass stands before its base. An empty step: the message has one.
_ENDINGS: tuple[tuple[type[Exception], Ending], ...] = (
    (CampaignMissing, Ending(ExitCode.NOT_FOUND, "`kernelbraid list` shows the campaigns of this store")),
    (PositionMissing, Ending(ExitCode.NOT_FOUND, "`kernelbraid log CAMPAIGN` shows every position")),
    (BlobMissing, Ending(ExitCode.NOT_FOUND, "`kernelbraid verify CAMPAIGN` says what else is missing")),
    (NotFound, Ending(ExitCode.NOT_FOUND)),
    (SourcesMissing, Ending(ExitCode.NOT_FOUND)),
    (LogDamaged, Ending(ExitCode.MISMATCH, "`kernelbraid verify CAMPAIGN` names every row that does not hold")),
    (EventInvalid, Ending(ExitCode.MISMATCH, "a newer kernelbraid may read it; `kernelbraid verify` names the row")),
    (
        DriverPresent,
        Ending(ExitCode.DRIVEN, "`kernelbraid log CAMPAIGN --follow` watches it, `pause` or `stop` ends it"),
    ),
    (
        ImportDamaged,
        Ending(
            ExitCode.MISMATCH,
            "nothing was imported: export the campaign again, or import it with a kernelbraid as new as its writer",
        ),
    ),
    (ImportClash, Ending(ExitCode.FAILURE, "nothing was imported: choose another store with --store sqlite:///PATH")),
    (FileRefused, Ending(ExitCode.FAILURE, "`kernelbraid export CAMPAIGN` writes a file that can be imported")),
    (Unavailable, Ending(ExitCode.USAGE)),
    (PolicyRefused, Ending(ExitCode.USAGE)),
    (NameRefused, Ending(ExitCode.USAGE, "choose another --name")),
    (FolderTaken, Ending(ExitCode.FAILURE, "name another folder with --out, or empty that one")),
    (PortTaken, Ending(ExitCode.FAILURE, "choose another --metrics-port")),
    (StoreReadOnly, Ending(ExitCode.FAILURE, "choose a store that can be written: --store sqlite:///PATH")),
    (
        StoreFull,
        Ending(ExitCode.FAILURE, "make room on the disk, then `kernelbraid resume CAMPAIGN`: the log is intact"),
    ),
    (StoreTooNew, Ending(ExitCode.FAILURE, "upgrade kernelbraid")),
    (CampaignExists, Ending(ExitCode.FAILURE, "choose another --name")),
    (Conflict, Ending(ExitCode.FAILURE, "run the command again")),
    (NotDrivable, Ending(ExitCode.FAILURE)),
    (OffspringRefused, Ending(ExitCode.FAILURE, "mend the sources and hand them in again: nothing was recorded")),
    (
        SandboxMissing,
        Ending(ExitCode.FAILURE, "`kernelbraid doctor` says what lacks, or --unsafe-no-sandbox says that it is meant"),
    ),
    (RuleBroken, Ending(ExitCode.FAILURE)),
    (StoreError, Ending(ExitCode.FAILURE)),
    (OperatorMissing, Ending(ExitCode.NOT_FOUND, "`kernelbraid operators` lists what comes with the package")),
    (TargetMissing, Ending(ExitCode.USAGE, "name one of them with --target")),
    (OperatorError, Ending(ExitCode.FAILURE, "`kernelbraid operators` lists what comes with the package")),
    (MissingToolchain, Ending(ExitCode.FAILURE, "`kernelbraid doctor` says what is there and what is missing")),
)


def ending_of(error: Exception) -> Ending:
    """The exit code and next step of an expected failure."""
    return next((ending for kind, ending in _ENDINGS if isinstance(error, kind)), Ending(ExitCode.FAILURE))
