"""Stop strings in streamed text, however the text was cut into pieces."""

from collections import deque
from collections.abc import Sequence


class StopChecker:
    """Finds the first stop string to be completed and holds back what may become one.

    The match that ends first wins; of several that end together, the longest. So the outcome
    depends on the text alone, not on its pieces, and a stop acts on the character that completes
    it. Runs in time linear in the text (Aho and Corasick, 1975).
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        if any(not word for word in stop):
            raise ValueError("a stop string is empty")
        self._include = include_stop_str_in_output
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text
        self._next: list[dict[str, int]] = [{}]  # transitions of the tree of stop strings
        self._depth = [0]  # length of the prefix a node stands for
        self._fail = [0]  # node of the longest proper suffix that is in the tree too
        self._match: list[str | None] = [None]  # longest stop string that ends at a node
        self._node = 0
        for word in stop:
            self._add(word)
        self._link()

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; returns what may be emitted and whether a stop string was completed.

        After a stop every push returns ("", True).
        """
        if self.matched is not None:
            return "", True
        if len(self._next) == 1:
            return text, False
        node = self._node
        for index, character in enumerate(text):
            while node and character not in self._next[node]:
                node = self._fail[node]
            node = self._next[node].get(character, 0)
            if (match := self._match[node]) is not None:
                seen = self._held + text[: index + 1]
                self.matched, self._held = match, ""
                return (seen if self._include else seen[: len(seen) - len(match)]), True
        self._node = node
        seen = self._held + text
        emitted = len(seen) - self._depth[node]
        self._held = seen[emitted:]
        return seen[:emitted], False

    def finish(self) -> str:
        """End of the text: what was held back, now known not to be a stop string."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _add(self, word: str) -> None:
        node = 0
        for character in word:
            child = self._next[node].get(character)
            if child is None:
                child = self._next[node][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._fail.append(0)
                self._match.append(None)
            node = child
        self._match[node] = word

    def _link(self) -> None:
        """Set the failure links, breadth first, so that shorter prefixes are done before."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for character, child in self._next[node].items():
                fail = self._fail[node]
                while fail and character not in self._next[fail]:
                    fail = self._fail[fail]
                self._fail[child] = self._next[fail].get(character, 0)
                if self._match[child] is None:
                    self._match[child] = self._match[self._fail[child]]
                queue.append(child)
