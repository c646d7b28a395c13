"""What the docstring of a table of settings says of it and of each setting."""

import inspect
import re
from functools import cache

import msgspec


@cache
def documented(kind: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """What the docstring says of the table, and under `Attributes:` of each setting, as one line each."""
    about, found = "", []
    for each in reversed(kind.__mro__):  # a struct's fields stand in the docstring of the one that brings them
        if issubclass(each, msgspec.Struct):
            about, _, listed = inspect.cleandoc(each.__doc__ or "").partition("\nAttributes:\n")
            found += re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE)
    return " ".join(about.split()), {name: " ".join(meaning.split()) for name, meaning in found}
