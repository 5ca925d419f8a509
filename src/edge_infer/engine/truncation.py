"""Which tokens may be sampled (top-k, top-p, min-p), and drawing one of them.

A vocabulary is large (150,000 and more) and what is kept of it small, so nothing here sorts the
whole of it unless the distribution is so flat that it must.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

_COLUMNS = 1024  # column maxima that bound the largest values from below
_NARROW = 512  # tokens among which a nucleus is looked for first
_BLOCK = 1024  # weights summed at a time when drawing


def kth_largest(values: Floats, k: int) -> np.float32:
    """The k-th largest value, 1 <= k <= len(values)."""
    if k <= _COLUMNS // 2 and len(values) >= 8 * _COLUMNS:
        values = values[values >= _lower_bound(values, k)]
    return np.float32(np.partition(values, len(values) - k)[len(values) - k])


def _lower_bound(values: Floats, k: int) -> np.float32:
    """A bound that at least k values reach: the k-th largest of disjoint groups' maxima."""
    rows = len(values) // _COLUMNS
    maxima = values[: rows * _COLUMNS].reshape(rows, _COLUMNS).max(axis=0)
    return np.float32(np.partition(maxima, _COLUMNS - k)[_COLUMNS - k])


def largest(values: Floats, k: int) -> Ids:
    """Indices of the k largest values, largest first, equal ones by index."""
    if k == 0:
        return np.empty(0, np.intp)
    indices = np.flatnonzero(values >= kth_largest(values, k))
    order = np.argsort(-values[indices], kind="stable")
    return indices[order[:k]]


def candidates(
    logits: Floats, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Ids | None, Floats]:
    """The tokens that may be sampled, at least one: their ids, ascending, and their weights.

    Ids are None when all of the vocabulary is left. min_p and top_p are about probabilities at
    `temperature`; top_p is about those of the tokens that min_p and top_k left. As in vLLM and
    transformers, tokens whose logit equals the k-th largest are all kept; of equally likely
    tokens at the edge of the nucleus, those with the lowest ids.
    """
    ids = None
    floor = np.float32(-np.inf)
    if min_p > 0.0:
        floor = np.float32(logits.max() + temperature * np.log(min_p))
    if 0 < top_k < len(logits):
        floor = max(floor, kth_largest(logits, top_k))
    if floor > -np.inf:
        ids = np.flatnonzero(logits >= floor)
        logits = logits[ids]
    mass = weights(logits, temperature)
    if top_p < 1.0:
        nucleus = _nucleus(mass, top_p)
        ids = nucleus if ids is None else ids[nucleus]
        mass = mass[nucleus]
    return ids, mass


def weights(logits: Floats, temperature: float) -> Floats:
    """Probabilities at `temperature`, up to a factor: 1 for the most likely token."""
    with np.errstate(over="ignore"):  # a huge difference is as good as an infinite one
        scaled: Floats = logits - logits.max()
        scaled *= np.float32(1.0 / temperature)
    return np.exp(scaled, out=scaled)


def _nucleus(mass: Floats, top_p: float) -> Ids:
    """Indices of the fewest weights that add up to the share top_p of all, ascending."""
    target = top_p * _total(mass)
    narrowed = None
    if len(mass) >= 8 * _COLUMNS:
        narrowed = np.flatnonzero(mass >= _lower_bound(mass, _NARROW))
        if _total(mass[narrowed]) >= target:
            mass = mass[narrowed]
        else:
            narrowed = None
    descending = np.sort(mass)[::-1]
    count = min(1 + _first_beyond(descending, target, strict=False), len(mass))
    edge = descending[count - 1]
    kept = np.flatnonzero(mass >= edge)
    if len(kept) > count:
        ties = np.flatnonzero(mass[kept] == edge)
        kept = np.delete(kept, ties[count - len(kept) :])
    return kept if narrowed is None else narrowed[kept]


def draw(mass: Floats, uniform: float) -> int:
    """The index at `uniform` (in [0, 1)) of the cumulative distribution of weights `mass`.

    An index of weight zero is never drawn.
    """
    index = _first_beyond(mass, uniform * _total(mass), strict=True)
    if index < len(mass):
        return index
    return int(np.flatnonzero(mass)[-1])  # rounding put the target past the sum


def _block_sums(mass: Floats) -> npt.NDArray[np.float64]:
    whole = len(mass) // _BLOCK * _BLOCK
    sums = mass[:whole].reshape(-1, _BLOCK).sum(axis=1).tolist()
    if whole < len(mass):
        sums.append(mass[whole:].sum())
    return np.array(sums, np.float64)


def _total(mass: Floats) -> float:
    return float(_block_sums(mass).sum())


def _first_beyond(mass: Floats, target: float, *, strict: bool) -> int:
    """First index whose cumulative sum exceeds `target` (or reaches it, if not strict).

    Adds up blocks first and looks into one of them only. len(mass) when no sum does.
    """
    side: Literal["left", "right"] = "right" if strict else "left"
    ends = np.cumsum(_block_sums(mass))
    block = int(np.searchsorted(ends, target, side=side))
    if block == len(ends):
        return len(mass)
    before = ends[block - 1] if block else 0.0
    inside = mass[block * _BLOCK : (block + 1) * _BLOCK]
    sums = before + np.cumsum(inside, dtype=np.float64)
    # the block's own sum was rounded differently, so the answer may seem to lie just past it
    offset = int(np.searchsorted(sums, target, side=side))
    last = int(np.flatnonzero(inside)[-1])
    return block * _BLOCK + min(offset, last)
