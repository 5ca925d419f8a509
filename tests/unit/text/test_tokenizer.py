import json
from pathlib import Path

import pytest
from small_tokenizers import CORPUS, byte_level_backend
from tokenizers import processors

from edge_infer.text import ChatTemplateError, Tokenizer, TokenizerError, load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", backend.token_to_id("<|bos|>"))]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"}, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("text", CORPUS)
def test_text_comes_back_and_ids_are_those_of_the_library(folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(folder)
    reference = byte_level_backend()
    assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text).ids
    assert tokenizer.encode(text) == [tokenizer.bos_token_id, *reference.encode(text).ids]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_the_text_become_their_ids(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("a<|eos|>b", add_special_tokens=False)
    assert ids[1] == tokenizer.eos_token_id == tokenizer.token_id("<|eos|>")
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|eos|>b"


def test_token_bytes_of_a_split_character(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("\U0001f9a5", add_special_tokens=False)
    assert len(ids) > 1
    assert b"".join(map(tokenizer.token_bytes, ids)) == "\U0001f9a5".encode()


def test_ids_outside_the_vocabulary_decode_to_nothing(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    inside = tokenizer.encode("fox", add_special_tokens=False)
    assert tokenizer.decode([*inside, tokenizer.vocab_size, 2**31]) == "fox"
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) != b""


def test_eos_ids_are_the_union_of_generation_config_and_tokenizer(folder: Path) -> None:
    own = load_tokenizer(folder).eos_token_id
    write(folder / "config.json", {"eos_token_id": 7})
    assert load_tokenizer(folder).eos_token_ids == {own, 7}
    write(folder / "generation_config.json", {"eos_token_id": [3, 5]})
    assert load_tokenizer(folder).eos_token_ids == {own, 3, 5}


def test_special_tokens_map_fills_what_the_config_leaves_out(folder: Path) -> None:
    write(folder / "special_tokens_map.json", {"pad_token": "<|eos|>", "bos_token": "<|eos|>"})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert tokenizer.special_tokens["bos_token"] == "<|bos|>"


def test_a_stored_truncation_does_not_cut_prompts(folder: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(max_length=3)
    backend.enable_padding(length=100)
    backend.save(str(folder / "tokenizer.json"))
    text = CORPUS[0]
    assert load_tokenizer(folder).encode(text) == byte_level_backend().encode(text).ids


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", b"<!DOCTYPE html><html>Sign in</html>", "not a tokenizer"),
        ("tokenizer.json", b'{"version": "1.0"', "not a tokenizer"),
        ("tokenizer.json", b"\x00\xff\xfe", "cannot be read"),
        ("tokenizer_config.json", b"{", "damaged JSON"),
        ("tokenizer_config.json", b"[]", "a JSON object is expected"),
        ("tokenizer_config.json", b'{"eos_token": 5}', "eos_token is 5"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "chat_template"),
        ("generation_config.json", b'{"eos_token_id": "</s>"}', "eos_token_id"),
        ("generation_config.json", b'{"eos_token_id": [1, -2]}', "eos_token_id"),
    ],
)
def test_damaged_files_are_named(folder: Path, name: str, content: bytes, reason: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=reason) as error:
        load_tokenizer(folder)
    assert name in str(error.value) or str(folder) in str(error.value)


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
        load_tokenizer(tmp_path)


def test_where_chat_templates_are_found(folder: Path) -> None:
    assert load_tokenizer(folder).chat_template is None
    write(folder / "tokenizer_config.json", {"chat_template": "key"})
    assert load_tokenizer(folder).chat_template == "key"
    write(folder / "chat_template.json", {"chat_template": "json file"})
    assert load_tokenizer(folder).chat_template == "json file"
    (folder / "chat_template.jinja").write_text("jinja file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag file")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.chat_templates == {"default": "jinja file", "rag": "rag file"}


def test_which_named_template_is_used(folder: Path) -> None:
    named = [
        {"name": "default", "template": "plain {{ bos_token }}{{ extra }}"},
        {"name": "tool_use", "template": "tools {{ tools | length }}"},
    ]
    write(folder / "tokenizer_config.json", {"bos_token": "<|bos|>", "chat_template": named})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.apply_chat_template([], extra="!") == "plain <|bos|>!"
    assert tokenizer.apply_chat_template([], tools=[{"name": "f"}]) == "tools 1"
    assert tokenizer.apply_chat_template([], chat_template="tool_use", tools=[]) == "tools 0"
    assert tokenizer.apply_chat_template([], chat_template="given {{ 1 + 1 }}") == "given 2"
    assert tokenizer.encode_chat([]) == tokenizer.encode("plain <|bos|>", add_special_tokens=False)


def test_no_chat_template_is_an_error() -> None:
    with pytest.raises(ChatTemplateError, match="no 'default' chat template"):
        Tokenizer(byte_level_backend()).apply_chat_template([{"role": "user", "content": "x"}])


def test_a_lone_surrogate_is_refused(folder: Path) -> None:
    with pytest.raises(TokenizerError, match=r"not Unicode.*character 1"):
        load_tokenizer(folder).encode("a\ud800b")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"a": ' + "1" * 10_000 + "}", "damaged JSON"),
    ],
)
def test_hostile_json_is_refused_by_name(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(TokenizerError, match=f"{name}: .*{message}"):
        load_tokenizer(folder)


def test_a_file_beyond_the_limit_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(1 << 32)  # a hole: no room on the disk
    with pytest.raises(TokenizerError, match=r"config\.json: has 4294967296 bytes, limit"):
        load_tokenizer(folder)
