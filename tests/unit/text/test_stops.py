import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_infer.text import StopChecker

WORDS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5)


def expected(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The text before the match that ends first, the longest of several, and the match."""
    for end in range(1, len(text) + 1):
        for word in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(word):
                return text[: end - len(word)], word
    return text, None


def chunks(text: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(text=st.text("abc", max_size=60), stop=WORDS, seed=st.integers(0, 10**6))
def test_as_on_the_whole_text(text: str, stop: list[str], seed: int) -> None:
    before, match = expected(text, stop)
    checker = StopChecker(stop)
    emitted = ""
    for chunk in chunks(text, seed):
        piece, stopped = checker.push(chunk)
        emitted += piece
        assert before.startswith(emitted)
        assert stopped == (checker.matched is not None)
    emitted += checker.finish()
    assert (emitted, checker.matched) == (before, match)


@given(text=st.text("abc", max_size=60), stop=WORDS, seed=st.integers(0, 10**6))
def test_the_stop_string_can_be_kept(text: str, stop: list[str], seed: int) -> None:
    before, match = expected(text, stop)
    checker = StopChecker(stop, include_stop_str_in_output=True)
    emitted = "".join(checker.push(chunk)[0] for chunk in chunks(text, seed))
    assert emitted + checker.finish() == before + (match or "")


@given(text=st.text("abc", max_size=30), stop=WORDS)
def test_no_more_is_held_back_than_could_become_a_match(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    seen = emitted = ""
    for character in text:
        piece, stopped = checker.push(character)
        if stopped:
            return
        seen, emitted = seen + character, emitted + piece
        prefixes = {word[:size] for word in stop for size in range(len(word))}
        held = max(size for size in range(len(seen) + 1) if seen[len(seen) - size :] in prefixes)
        assert emitted == seen[: len(seen) - held]


def test_straddling_tokens() -> None:
    checker = StopChecker(["</end>", "STOP"])
    assert checker.push("Hello <") == ("Hello ", False)
    assert checker.push("/e") == ("", False)
    assert checker.push("at>") == ("</eat>", False)
    assert checker.push(" ST") == (" ", False)
    assert checker.push("OP, never shown") == ("", True)
    assert checker.matched == "STOP"
    assert checker.push("more") == ("", True)
    assert checker.finish() == ""


def test_what_was_held_back_is_flushed_at_the_end() -> None:
    checker = StopChecker(["\n\nUser:"])
    assert checker.push("done.\n\nUs") == ("done.", False)
    assert checker.finish() == "\n\nUs"
    assert checker.matched is None


def test_a_match_begun_inside_another_is_not_lost() -> None:
    checker = StopChecker(["zya1", "ya2", "a3"])
    assert checker.push("zya") == ("", False)
    assert checker.push("3") == ("zy", True)


def test_without_stop_strings_text_passes_through() -> None:
    checker = StopChecker([])
    assert checker.push("anything") == ("anything", False)
    assert checker.finish() == ""


def test_the_same_stop_string_twice() -> None:
    checker = StopChecker(["ab", "ab"])
    assert checker.push("xaby") == ("x", True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopChecker(["a", ""])
