"""Whether a downloaded file is what the hub says: by hash, since a size proves nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from edge_infer.checkpoint.files import damage_hint, read_json_object, write_json
from edge_infer.hub.cache import make_folder, safe_name
from edge_infer.hub.errors import ModelSourceError

_log = logging.getLogger(__name__)
_DIGEST = re.compile("[0-9a-f]{64}|[0-9a-f]{40}")


def file_digest(path: Path, like: str) -> str:
    """The sha256 of a file, or its git blob id when `like` has that length (40 digits)."""
    if len(like) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(usedforsecurity=False)
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_file(path: Path, expected: str, name: str, *, size: int | None = None) -> None:
    """Delete a file whose hash is not `expected` and raise ModelSourceError, which names it."""
    actual_size = path.stat().st_size
    if size in (None, actual_size) and file_digest(path, expected) == expected:
        return
    with path.open("rb") as file:
        hint = damage_hint(file.read(512))
    wrong = "its hash is not the hub's"
    if size not in (None, actual_size):
        wrong = f"it has {actual_size} bytes, not {size}"
    path.unlink()
    raise ModelSourceError(
        f"{name} is damaged: {f'{hint}; ' if hint else ''}{wrong}. It was deleted: "
        "run the same command again to fetch it anew"
    )


def verify_snapshot(
    folder: Path, files: Mapping[str, str | None], records: Path, repo_id: str
) -> None:
    """Check files of a hub snapshot, each once as long as its size and time stay the same.

    `files` gives each one's hash, or None for the hash that names its blob in the hub cache.
    Raises ModelSourceError after deleting the first damaged file.
    """
    record = records / f"{safe_name(repo_id)}-{safe_name(folder.name)}.json"
    known = read_json_object(record) if record.exists() else {}
    before = json.dumps(known, sort_keys=True)
    for name, digest in files.items():
        link = folder / name
        blob = link.resolve()
        expected = digest or blob.name
        if not _DIGEST.fullmatch(expected):
            _log.warning("%s: nothing says what its hash should be", link)
            continue
        status = blob.stat()
        state = [expected, status.st_size, status.st_mtime_ns]
        if known.get(name) == state:
            continue
        try:
            check_file(blob, expected, f"{name} of {repo_id}")
        except ModelSourceError:
            link.unlink(missing_ok=True)
            raise
        known[name] = state
    if json.dumps(known, sort_keys=True) != before:
        make_folder(records)
        temporary = record.with_suffix(f".{os.getpid()}.tmp")
        write_json(temporary, known)
        temporary.rename(record)
