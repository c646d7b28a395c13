"""The settings of a file source; apart from it, so that reading settings needs nothing else."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mainstem.core import is_topic_name


class FileSourceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="file"):
    """Settings of `[sources.<name>]` with `type = "file"`.

    Attributes:
        path: the file to follow; it need not exist yet. Its rotated forerunners are looked for beside it, by the
            names that a rotation gives: the file's own and a number or a time, as in `<name>.1`, `<name>-20240501`.
        topic: where its lines go, as `{"line": ...}`.
        encoding: of the file, one whose lines end with the byte 0x0A; bytes that are none go to the quarantine.
            `utf-8-sig` leaves out a mark (BOM) before the first line.
        end_marker: when a file `<path>.end` exists, the input is finished: whoever writes the file makes it when done.
            (To guess the end from a silence would be to call a slow writer finished.)
        batch_bytes: how much is read for one transaction, at most 20,000 lines of it.
        max_line_bytes: a longer line goes to the quarantine, in pieces; below the topic's `max.message.bytes`.
        poll_ms: how often the file is looked at when nothing new was there.
        rotation_wait_ms: how long a renamed file may still be written to.
        on_gap: what to do when the file that was being read is gone, and with it what may have been unread of it.
    """

    path: Annotated[str, Meta(min_length=1)]
    topic: str
    encoding: str = "utf-8"
    end_marker: bool = True
    batch_bytes: Annotated[int, Meta(ge=1)] = 1 << 20
    max_line_bytes: Annotated[int, Meta(ge=1)] = 512 << 10
    poll_ms: Annotated[int, Meta(ge=1)] = 200
    rotation_wait_ms: Annotated[int, Meta(ge=0)] = 2_000
    on_gap: Literal["refuse", "skip"] = "refuse"

    def __post_init__(self) -> None:
        if not is_topic_name(self.topic):
            raise ValueError(f"expected letters, digits, '.', '_' and '-' in a topic's name, found {self.topic!r}")
        if "\0" in self.path:
            raise ValueError(f"expected a path, found {self.path!r}: no name has a NUL")
        try:
            line_end = b"\n".decode(self.encoding)
        except UnicodeDecodeError:
            line_end = ""  # it is known, and has wider characters
        except LookupError:  # also of codecs that are not of text
            raise ValueError(f"unknown encoding {self.encoding!r}") from None
        if line_end != "\n":
            raise ValueError(
                f"expected an encoding whose lines end with the byte 0x0A, found {self.encoding!r}: "
                "have the file written in utf-8, or turn it into that before it is read"
            )
