"""One large file over HTTP, from where an earlier attempt ended, through dropped connections."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import BinaryIO

from huggingface_hub import constants, errors, get_session
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
)

# The base error of the HTTP client that huggingface_hub brings along (httpx or its successor).
NetworkError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]

# Attempts without a single new byte before giving up, and the pause between two.
ATTEMPTS = 5
PAUSE_SECONDS = 1.0

_log = logging.getLogger(__name__)


def fetch(url: str, out: BinaryIO, size: int, progress: Callable[[int, int], None]) -> None:
    """Append to `out`, which is open for appending, until it has `size` bytes.

    What came is not looked at, and may be shorter or longer when the server sends something else.
    Raises NetworkError: HfHubHTTPError for an answer that refuses, others for a connection that
    keeps failing; what came until then stays in `out`.
    """
    attempts = ATTEMPTS
    while (before := out.tell()) < size:
        try:
            _append(url, out, size, progress)
            return
        except NetworkError as error:
            attempts = ATTEMPTS if out.tell() > before else attempts - 1
            if attempts == 0 or not _may_pass(error):
                raise
            _log.info("%s: %s at byte %d, trying again", url, error, out.tell())
            time.sleep(PAUSE_SECONDS)


def _append(url: str, out: BinaryIO, size: int, progress: Callable[[int, int], None]) -> None:
    # Not compressed: a range counts the bytes that are sent.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if out.tell():
        headers["Range"] = f"bytes={out.tell()}-"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        if response.status_code != 206 and out.tell():  # the server knows no ranges: start again
            out.seek(0)
            out.truncate()
        for block in response.iter_bytes():
            out.write(block)
            progress(out.tell(), size)
            if out.tell() > size:
                return


def _may_pass(error: Exception) -> bool:
    """Whether a later attempt can succeed: lost connections, and answers that say so."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return True
