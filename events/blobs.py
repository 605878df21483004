"""Blobs: content-addressed bytes that events name by digest (sources, prompts, replies, logs, timing blocks)."""

import hashlib
import zlib

from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.campaign import CampaignOpened, RootQualified
from kernelbraid.events.effects import ModelCalled, ModelRequested
from kernelbraid.events.event import Event
from kernelbraid.events.search import ImplementationSubmitted
from kernelbraid.events.values import Measurement


def digest_of(data: bytes) -> str:
    """SHA-256 of uncompressed bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def named_blobs(event: Event) -> tuple[str, ...]:
    """Digests of the blobs an event names, in its own order.

    Other digests in events (regions, artifacts, environments, code) identify things that are not kept here.
    """
    match event:
        case CampaignOpened() | ImplementationSubmitted():
            return tuple(source.digest for source in event.sources)
        case RootQualified():
            return event.blocks
        case AuditCompleted():
            return (*_blocks(event.measurement), *_given(event.log))
        case TimingCompleted():
            return _blocks(event.measurement)
        case ModelRequested():
            return (event.prompt,)
        case ModelCalled():
            return _given(event.reply)
        case _:
            return ()


def deflated(data: bytes) -> bytes:
    """Bytes as the store keeps them."""
    return zlib.compress(data, 6)


def inflated(stored: bytes) -> bytes:
    """The bytes that `deflated` was given. Raises zlib.error on anything else."""
    return zlib.decompress(stored)


def _blocks(measurement: Measurement | None) -> tuple[str, ...]:
    return () if measurement is None else measurement.blocks


def _given(digest: str | None) -> tuple[str, ...]:
    return () if digest is None else (digest,)
