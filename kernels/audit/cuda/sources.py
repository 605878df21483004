"""A candidate's artifact: its sources as submitted, and beside them what a compiler made of them."""

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.outcome import Correctness

SOURCES, CACHE = "sources", "cache"
KEY = "triton_key.json"
MOST_UNPACKED_BYTES = 512 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)


def packed(sources: Mapping[str, str], compiled: bytes | None = None) -> bytes:
    """One archive, the same bytes for the same contents.

    `compiled` is a compiler's archive: only its cache is taken, as the process that wrote it held the candidate's
    host code and could have put other sources in. Raises CandidateFailed(build_failed) when it cannot be read.
    """
    files = {f"{SOURCES}/{name}": text.encode("utf-8", errors="surrogatepass") for name, text in sources.items()}
    return _archived(files | dict(_cache_files(compiled) if compiled is not None else ()))


def _archived(files: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as out:
        for name in sorted(files):
            out.writestr(zipfile.ZipInfo(name, _EPOCH), files[name])
    return archive.getvalue()


def write_stubs(artifact: Artifact, folder: Path) -> None:
    """The artifact's launch stubs and Triton's digest of itself, in a folder that is laid out as Triton's cache."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(artifact.checked_image())) as archive:
        for name in archive.namelist():
            if name.startswith(f"{CACHE}/") and name.endswith((".so", KEY)):
                path = folder / Path(name).relative_to(CACHE)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(archive.read(name))


def unpacked(artifact: Artifact, folder: Path) -> None:
    """Fill folder/sources and folder/cache, the latter as Triton's cache.

    Triton finds a kernel's files by a list with absolute paths, which is written here for where they now lie.
    """
    with zipfile.ZipFile(io.BytesIO(artifact.checked_image())) as archive:
        archive.extractall(folder)
    for metadata in (folder / CACHE).glob("*/*.json"):
        files = {path.name: str(path) for path in metadata.parent.glob(f"{metadata.stem}.*")}
        (metadata.parent / f"__grp__{metadata.name}").write_text(json.dumps({"child_paths": files}))


def _cache_files(compiled: bytes) -> Iterable[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(compiled)) as archive:
            found = [item for item in archive.infolist() if item.filename.startswith(f"{CACHE}/")]
            if sum(item.file_size for item in found) > MOST_UNPACKED_BYTES:
                raise CandidateFailed(Correctness.BUILD_FAILED, "the compiler's cache is larger than it may be")
            return [(item.filename, archive.read(item)) for item in found if not item.is_dir()]
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise CandidateFailed(Correctness.BUILD_FAILED, f"the compiler's archive cannot be read: {error}") from error
