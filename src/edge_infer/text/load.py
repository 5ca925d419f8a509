"""Open the tokenizer of a checkpoint folder."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from edge_infer.text.tokenizer import Tokenizer, TokenizerError

_MAX_FILE_BYTES = 256 << 20  # the largest tokenizer.json in use is about 35 MB
_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer in a Hugging Face folder.

    tokenizer.json is required; tokenizer_config.json, special_tokens_map.json,
    generation_config.json, config.json and chat template files are read when present. Raises
    TokenizerError, which names the file and the reason.
    """
    folder = Path(folder)
    config = _read_object(folder / "tokenizer_config.json")
    special = _special_tokens(folder, config)
    return Tokenizer(
        _read_backend(folder / "tokenizer.json"),
        special_tokens=special,
        eos_token_ids=_eos_token_ids(folder),
        chat_templates=_chat_templates(folder, config),
    )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    text = _read_text(path)
    if text is None:
        raise TokenizerError(f"{path}: no such file; a folder needs a tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing narrower
        raise TokenizerError(f"{path}: not a tokenizer: {error}") from error
    # some files carry the settings of a training run; a prompt must never be cut or padded
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_text(path: Path) -> str | None:
    """The file's text, or None when there is no such file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _MAX_FILE_BYTES:
                raise TokenizerError(f"{path}: has {size} bytes, limit {_MAX_FILE_BYTES}")
            return file.read(size).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is no such file."""
    text = _read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise TokenizerError(f"{path}: the JSON is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, or an integer of too many digits
        raise TokenizerError(f"{path}: damaged JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: a JSON object is expected, found {type(value).__name__}")
    return value


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    path = folder / "special_tokens_map.json"
    named = {**_read_object(path), **{k: v for k, v in config.items() if v is not None}}
    special = {}
    for name in _SPECIAL_NAMES:
        token = named.get(name)
        if isinstance(token, Mapping):  # a serialized AddedToken
            token = token.get("content")
        if token is None:
            continue
        if not isinstance(token, str):
            raise TokenizerError(f"{folder}: {name} is {token!r}; a string is expected")
        special[name] = token
    return special


def _eos_token_ids(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = _read_object(path).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise TokenizerError(f"{path}: eos_token_id {value!r} is not a list of token ids")
        return ids
    return []


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; a file wins over the key in tokenizer_config.json."""
    templates = _configured_templates(folder / "tokenizer_config.json", config.get("chat_template"))
    # folders of multimodal models keep the key in a file of its own
    path = folder / "chat_template.json"
    templates |= _configured_templates(path, _read_object(path).get("chat_template"))
    single = _read_text(folder / "chat_template.jinja")
    if single is not None:
        templates["default"] = single
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        text = _read_text(path)
        if text is not None:
            templates[path.stem] = text
    return templates


def _configured_templates(path: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    named = {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, Mapping)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }
    if not entries or len(named) != len(entries):
        raise TokenizerError(
            f"{path}: chat_template is neither a string nor a list of "
            '{"name": ..., "template": ...}'
        )
    return named
