"""What a docstring says of settings."""

import msgspec

from mainstem.core.documented import documented


class Below(msgspec.Struct):
    """The table below.

    Attributes:
        kept: stays, `a|b`.
    """

    kept: int = 0


class Above(Below):
    """The table
    above.

    Attributes:
        own: a text that
            goes on.
    """

    own: int = 0


def test_every_setting_has_the_text_of_the_struct_that_brings_it() -> None:
    assert documented(Above) == ("The table above.", {"kept": "stays, `a|b`.", "own": "a text that goes on."})


def test_without_a_docstring_nothing_is_known() -> None:
    assert documented(type("Plain", (msgspec.Struct,), {})) == ("", {})
