"""Models of the hub: what to fetch, fetched resumably, and every file checked against its hash.

Files land in the hub client's own cache (`HF_HOME`, `HF_HUB_CACHE`), so other tools share them.
Large files are fetched here, under the name of their sha256, because the client forgets a partial
file when its process ends; the small rest and the folder of links are left to the client.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, errors, hf_hub_url, snapshot_download
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import tqdm, validate_repo_id  # type: ignore[attr-defined]

from edge_infer.checkpoint.files import read_json_object
from edge_infer.hub.cache import cache_folder, lock, make_folder, require_space
from edge_infer.hub.errors import ModelSourceError
from edge_infer.hub.progress import byte_progress
from edge_infer.hub.transfer import NetworkError, fetch
from edge_infer.hub.verify import check_file, verify_snapshot

_log = logging.getLogger(__name__)
_METADATA_SECONDS = 10.0
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model(-[0-9]+-of-[0-9]+)?\.safetensors")
_SMALL = re.compile(r"[^/]+\.(json|jinja)|tokenizer\.model|merges\.txt|vocab\.txt")


@dataclass(frozen=True)
class _RemoteFile:
    """A file of a repository; `digest` is its sha256 (large files) or git blob id."""

    name: str
    size: int
    digest: str
    large: bool


class _SilentBar(tqdm):
    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]


def select_files(names: Iterable[str], repo_id: str) -> list[str]:
    """The files that the engine reads: configuration, tokenizer, one set of safetensors weights.

    Raises ModelSourceError when there is nothing to run.
    """
    top = sorted(name for name in names if "/" not in name)
    weights = [n for n in top if _SHARD.fullmatch(n)]
    weights = weights or [n for n in top if n.endswith(".safetensors")]
    if "config.json" not in top or not weights:
        what = "no config.json" if weights else "no safetensors weights"
        hint = ""
        if ggufs := [n for n in top if n.endswith(".gguf")]:
            hint = f"; it has GGUF files ({ggufs[0]}): download one and give its path"
        elif any(n.endswith((".bin", ".pt", ".pth")) for n in top):
            hint = "; it has pickle files, which are never loaded"
        raise ModelSourceError(f"{repo_id} on the hub has {what}{hint}")
    return [n for n in top if _SMALL.fullmatch(n)] + weights


def download_snapshot(
    repo_id: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: bool = True,
) -> Path:
    """Fetch what is missing of a hub model, verify it, and return its folder in the hub cache.

    HF_ENDPOINT and HF_TOKEN are honoured. Without a network, a complete earlier download is used.
    Raises ModelSourceError: unknown, gated, unreachable, no space, or a file with a wrong hash.
    """
    try:
        validate_repo_id(repo_id)
    except errors.HFValidationError as error:
        raise ModelSourceError(f"{repo_id!r} is no hub id: {error}") from error
    hub_cache = Path(constants.HF_HUB_CACHE) if cache_dir is None else cache_dir / "hub"
    records = cache_folder(cache_dir) / "verified"
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT
    if not offline:
        try:
            info = _model_info(repo_id, revision, endpoint)
        except (NetworkError, errors.OfflineModeIsEnabled) as error:
            if isinstance(error, errors.HfHubHTTPError) and error.response.status_code < 500:
                raise _explained(error, repo_id, revision, endpoint) from error
            reason = f"{endpoint} cannot be reached ({type(error).__name__}: {error})"
            folder, names = _cached_snapshot(repo_id, revision, hub_cache, reason)
            _log.warning("%s: %s, so an earlier download is used", repo_id, reason)
        else:
            return _fetch(repo_id, revision, info, endpoint, hub_cache, records, progress)
    else:
        folder, names = _cached_snapshot(repo_id, revision, hub_cache, "offline was asked for")
    verify_snapshot(folder, dict.fromkeys(names), records, repo_id)
    return folder


def _model_info(repo_id: str, revision: str | None, endpoint: str) -> ModelInfo:
    try:
        return HfApi(endpoint=endpoint).model_info(
            repo_id, revision=revision, files_metadata=True, timeout=_METADATA_SECONDS
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, NetworkError):
            raise  # a status error of the client that is also a ValueError
        raise ModelSourceError(
            f"{endpoint} did not answer like a hub (a proxy or a login page in between?): {error}"
        ) from error


def _fetch(
    repo_id: str,
    revision: str | None,
    info: ModelInfo,
    endpoint: str,
    hub_cache: Path,
    records: Path,
    progress: bool,
) -> Path:
    files = _remote_files(info, repo_id)
    make_folder(hub_cache)
    repo = hub_cache / repo_folder_name(repo_id=repo_id, repo_type="model")
    missing = [f for f in files if not (repo / "blobs" / f.digest).exists()]
    require_space(hub_cache, sum(file.size for file in missing), f"the download of {repo_id}")
    try:
        for file in missing:
            if file.large:
                url = hf_hub_url(repo_id, file.name, revision=info.sha, endpoint=endpoint)
                _fetch_large(url, file, repo, repo_id, progress)
        folder = snapshot_download(
            repo_id,
            revision=revision,
            cache_dir=hub_cache,
            endpoint=endpoint,
            allow_patterns=[glob.escape(file.name) for file in files],
            tqdm_class=_SilentBar,  # what is left is small
        )
    except (NetworkError, errors.LocalEntryNotFoundError) as error:
        raise _explained(error, repo_id, revision, endpoint) from error
    verify_snapshot(Path(folder), {f.name: f.digest for f in files}, records, repo_id)
    return Path(folder)


def _remote_files(info: ModelInfo, repo_id: str) -> list[_RemoteFile]:
    """The files to have, from the hub's listing, which is not trusted further than needed."""
    listed = {sibling.rfilename: sibling for sibling in info.siblings or []}
    files = []
    for name in select_files(listed, repo_id):
        entry = listed[name]
        large = entry.lfs is not None
        digest = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
        size = entry.lfs.size if entry.lfs is not None else entry.size
        if not isinstance(size, int) or not re.fullmatch(
            "[0-9a-f]{64}" if large else "[0-9a-f]{40}", str(digest)
        ):
            raise ModelSourceError(f"{repo_id}: the hub lists {name} without its size and hash")
        files.append(_RemoteFile(name, size, str(digest), large))
    return files


def _fetch_large(url: str, file: _RemoteFile, repo: Path, repo_id: str, progress: bool) -> None:
    """Fetch one file to `blobs/<sha256>`, from where an earlier attempt ended.

    A partial file stays for the next attempt unless what came is not the file.
    """
    blobs = repo / "blobs"
    make_folder(blobs)
    partial = blobs / f"{file.digest}.incomplete"
    # The lock that the hub client itself takes for this file.
    with lock(repo.parent / ".locks" / repo.name / f"{file.digest}.lock"):
        if (blobs / file.digest).exists():
            return
        with partial.open("ab") as out, byte_progress(file.name, progress) as show:
            try:
                fetch(url, out, file.size, show)
            except NetworkError as error:
                if isinstance(error, errors.HfHubHTTPError):
                    raise
                raise ModelSourceError(
                    f"{file.name} of {repo_id}: the connection failed at {out.tell()} of "
                    f"{file.size} bytes ({error}): run the same command again to go on from there"
                ) from error
        check_file(partial, file.digest, f"{file.name} of {repo_id}", size=file.size)
        partial.rename(blobs / file.digest)


def _cached_snapshot(
    repo_id: str, revision: str | None, hub_cache: Path, reason: str
) -> tuple[Path, list[str]]:
    """The folder and files of a complete earlier download."""
    wanted = f"{repo_id}@{revision}" if revision else repo_id
    try:
        folder = Path(
            snapshot_download(
                repo_id,
                revision=revision,
                cache_dir=hub_cache,
                allow_patterns=["config.json"],
                local_files_only=True,
            )
        )
    except errors.LocalEntryNotFoundError as error:
        raise ModelSourceError(f"{wanted} is not in {hub_cache}, and {reason}") from error
    names = select_files((file.name for file in folder.iterdir()), repo_id)
    if (folder / _INDEX).exists():
        shards = set(map(str, read_json_object(folder / _INDEX).get("weight_map", {}).values()))
        if absent := sorted(shards - set(names)):
            raise ModelSourceError(
                f"{wanted} is only in part in {hub_cache} ({absent[0]} is missing), and {reason}"
            )
    return folder, names


def _explained(
    error: Exception, repo_id: str, revision: str | None, endpoint: str
) -> ModelSourceError:
    """What a failed answer of the hub means for the user."""
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    token = "log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        text = (
            f"{repo_id} is gated ({status}): accept its terms at {endpoint}/{repo_id} and {token}"
        )
    elif isinstance(error, errors.RevisionNotFoundError):
        text = f"{repo_id} has no revision {revision!r} on {endpoint}"
    elif status == 401:
        text = f"{repo_id} does not exist on {endpoint} or is private (401); if it is, {token}"
    elif status == 403:
        text = f"{endpoint} refuses {repo_id} to this account (403): {token}"
    elif status == 404:
        text = f"{repo_id} does not exist on {endpoint} (404), or a file of it is gone"
    else:
        text = f"{repo_id} cannot be fetched from {endpoint}: {error}"
    return ModelSourceError(text)
