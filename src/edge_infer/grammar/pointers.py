"""JSON pointers in URI fragments: "#" is the whole schema, "#/items" a part of it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def pointer(path: tuple[str, ...]) -> str:
    """`path` as a JSON pointer in a URI fragment: "#" is the whole."""
    escaped = (str(name).replace("~", "~0").replace("/", "~1") for name in path)
    return "/".join(["#", *escaped])


def resolve(root: Any, reference: str) -> Any:
    """The part of `root` that '#' or '#/...' refers to; None if there is none."""
    target = root
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target
