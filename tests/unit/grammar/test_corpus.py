"""300 schemas: each is refused by name, or every text that comes to its end is valid."""

from typing import Any

import pytest
from harness.schema_corpus import SCHEMAS, check_text, is_valid_schema
from tests.unit.grammar.random_texts import RandomTexts

from edge_infer.grammar import GrammarCompiler, GrammarError, StructuredOutputs
from edge_infer.text import Tokenizer

SAMPLES = 6
ACCEPTED = [entry for entry in SCHEMAS if "refused" not in entry]
REFUSED = [entry for entry in SCHEMAS if "refused" in entry]


def names(entry: dict[str, Any]) -> str:
    return str(entry["name"])


@pytest.fixture(scope="module")
def random_texts(smollm2: Tokenizer, compiler: GrammarCompiler) -> RandomTexts:
    compiler.compile(StructuredOutputs(json_object=True))
    return RandomTexts(smollm2, 49152)


def test_the_corpus_is_large_and_its_accepted_schemas_are_schemas() -> None:
    assert len(ACCEPTED) >= 200
    assert len({entry["name"] for entry in SCHEMAS}) == len(SCHEMAS)
    unsound = [entry["name"] for entry in ACCEPTED if not is_valid_schema(entry["schema"])]
    assert unsound == ["object: required twice"]  # which does no harm


@pytest.mark.parametrize("entry", REFUSED, ids=names)
def test_refused_schemas_are_refused_at_their_place(
    compiler: GrammarCompiler, entry: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError) as refusal:
        compiler.compile(StructuredOutputs(json_schema=entry["schema"]))
    assert str(refusal.value).startswith(f"json_schema at {entry['refused']}: ")


def test_every_finished_text_is_valid(compiler: GrammarCompiler, random_texts: RandomTexts) -> None:
    with_texts = 0  # the others are patterns that random letters do not meet
    for entry in ACCEPTED:
        grammar = compiler.compile(StructuredOutputs(json_schema=entry["schema"]))
        texts = [random_texts.sample(grammar, seed) for seed in range(SAMPLES)]
        finished = [text for text in texts if text is not None]
        with_texts += bool(finished)
        for text in finished:
            check_text(text, entry["schema"])
    assert with_texts >= 0.97 * len(ACCEPTED)
