"""llguidance's messages in the words of this package, on one line."""

import re

_MAX_LENGTH = 400
_POSITION = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_QUOTED_SOURCE = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_REGEX = re.compile(r"regex parse error:\n {4}(.*)\n {4}( *)\^+\nerror: (.*)")
_ONE_OF = "oneOf constraints are not supported."
_WITHOUT_TEXT = ("", "NoExtension", "NoExtensionBias")


def reworded(fault: str, *, with_position: bool = False) -> str:
    """`fault` without the source it quotes; `with_position` where that is the caller's own text."""
    fault = _QUOTED_SOURCE.sub("", fault).replace("<non-verbose/>", "").strip()
    if fault in _WITHOUT_TEXT:
        return "no text matches it"
    if fault.startswith(_ONE_OF):
        return (
            "the alternatives of 'oneOf' are not known to exclude each other; use 'anyOf', or let "
            "them differ in type or in a required constant property"
        )
    where = ""
    if position := _POSITION.match(fault):
        fault = fault[position.end() :]
        where = f"line {position[1]}, column {position[2]}: " if with_position else ""
    if parse := _REGEX.search(fault):
        fault = f"regular expression {parse[1]!r}, character {len(parse[2])}: {parse[3]}"
    return where + " ".join(fault.split())[:_MAX_LENGTH]
