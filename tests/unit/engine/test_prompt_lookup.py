"""Drafts from what followed the last tokens before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from edge_infer.engine.prompt_lookup import PromptLookup
from edge_infer.engine.sequence import Sequence


@dataclass
class Text:
    """Just what the lookup reads of a sequence."""

    ids: list[int]

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def tokens(self, start: int, end: int) -> list[int]:
        return self.ids[start:end]


def propose(lookup: PromptLookup, ids: list[int], limit: int = 8) -> list[int]:
    return lookup.propose(cast(Sequence, Text(ids)), limit)


def test_what_followed_the_last_three_tokens() -> None:
    assert propose(PromptLookup(4), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]) == [4, 5, 6, 7]
    assert propose(PromptLookup(4), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], 2) == [4, 5]
    assert propose(PromptLookup(4), [1, 2, 3, 4, 5, 2, 3]) == []
    assert propose(PromptLookup(4), [1, 2, 3]) == []
    assert propose(PromptLookup(4), []) == []


def test_the_latest_occurrence_counts() -> None:
    assert propose(PromptLookup(1), [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]) == [5]


def test_a_period_goes_on() -> None:
    assert propose(PromptLookup(5), [9, 7, 7, 7, 7]) == [7] * 5
    assert propose(PromptLookup(5), [1, 2, 1, 2, 1, 2]) == [1, 2, 1, 2, 1]


def test_a_growing_text_is_indexed_once() -> None:
    lookup = PromptLookup(4)
    ids = [1, 2, 3, 4]
    assert propose(lookup, ids) == []
    ids += [5, 6, 2, 3, 4]
    assert propose(lookup, ids) == [5, 6, 2, 3]
    fresh = PromptLookup(4)
    assert propose(fresh, ids) == [5, 6, 2, 3]


def test_wrong_drafts_become_short_and_rare() -> None:
    lookup, ids = PromptLookup(8), [1] * 40
    asked = drafted = 0
    while asked < 200:
        asked += 1
        if draft := propose(lookup, ids):
            drafted += 1
            lookup.accepted(len(draft), 0)
    assert drafted < 12
    lookup = PromptLookup(8)
    lookup.accepted(8, 3)
    assert len(propose(lookup, ids)) == 3
    lookup.accepted(3, 3)
    assert len(propose(lookup, ids)) == 6
