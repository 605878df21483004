"""Every expected failure of the event room, as one tree.

KernelbraidError
├── RuleBroken            a decision the IR does not allow (the decider's refusals)
├── StoreError            the store cannot do what was asked
│   ├── CampaignMissing       no such campaign
│   ├── CampaignExists        the name is taken
│   ├── NameRefused           no campaign may have that name
│   ├── PositionMissing       no such position, or not the end of a batch
│   ├── Conflict              somebody appended first: fold again and decide again
│   ├── StoreReadOnly         the file or its folder cannot be written
│   ├── StoreFull             the disk is full
│   ├── StoreTooNew           written by a newer kernelbraid
│   ├── FileRefused           a file that is no exported campaign
│   ├── BlobMissing           a digest without its bytes
│   └── NotDrivable           an ancestor's prefix, imported with a child
├── DriverPresent         another process drives the campaign
├── LogDamaged            a row was changed, deleted, swapped or cut off
└── EventInvalid          stored bytes that no known schema version reads
"""


class KernelbraidError(Exception):
    """Root of every expected failure; the message says the cause and the next step."""


class RuleBroken(KernelbraidError):
    """A decision that the rules of the IR refuse."""


class StoreError(KernelbraidError):
    """The store cannot do what was asked."""


class CampaignMissing(StoreError):
    """No campaign has that name."""


class CampaignExists(StoreError):
    """A campaign has that name already."""


class NameRefused(StoreError):
    """No campaign may have that name: it becomes part of a file's name and of ids."""


class PositionMissing(StoreError):
    """The campaign has no such position, or it is not the end of a batch."""


class Conflict(StoreError):
    """Another writer appended first; nothing of this append was stored."""


class StoreReadOnly(StoreError):
    """The store's file or folder cannot be written."""


class StoreFull(StoreError):
    """The disk has no room for the append; nothing of it was stored."""


class StoreTooNew(StoreError):
    """A newer kernelbraid wrote the store."""


class FileRefused(StoreError):
    """A file to import is no exported campaign."""


class BlobMissing(StoreError):
    """A digest is named but its bytes are not in the store."""


class NotDrivable(StoreError):
    """The campaign is an ancestor's prefix: it can be read and forked, not driven."""


class DriverPresent(KernelbraidError):
    """Another process holds the campaign's driver lease."""


class LogDamaged(KernelbraidError):
    """The chain of hashes does not hold; the message names the row."""


class EventInvalid(KernelbraidError):
    """Stored bytes that no known schema version reads."""
