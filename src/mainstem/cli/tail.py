"""`mainstem tail TOPIC`: the records of a topic as they come, decoded."""

import itertools
from typing import TYPE_CHECKING

import click
import msgspec

from mainstem.cli.output import printable
from mainstem.cli.target import Target, connection_options
from mainstem.core import UserError

if TYPE_CHECKING:
    from mainstem.registry.reader import TypedRecord


@click.command(short_help="Print the records of a topic.")
@click.argument("topic")
@click.option("--from", "start", default="end", show_default=True, help="earliest, end, or an offset.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--no-follow", is_flag=True, help="Stop at the end, or where a transaction is open.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line; its fields are stable.")
@connection_options
def tail(topic: str, start: str, count: int | None, no_follow: bool, as_json: bool, target: Target) -> None:
    """Print the committed records of TOPIC, one per line."""
    from mainstem.registry.reader import TypedReader, in_json

    if start not in ("earliest", "end") and not (start.isascii() and start.isdigit() and len(start) < len(str(2**63))):
        raise UserError(f"--from: expected earliest, end or an offset, found {start[:40]!r}")
    connection, printed = target.connect(), 0
    with TypedReader(connection, topic, start=start, follow=not no_follow, raw=True, decided=no_follow) as reader:
        for found in itertools.islice(reader, count):
            record = msgspec.structs.replace(found, value=in_json(found.value))
            click.echo(msgspec.json.encode(record) if as_json else _line(record))
            printed += 1
        if printed != count:
            for partition, offset in reader.undecided.items():
                left_out = f"a transaction is open from offset {offset}: what follows is not shown"
                click.echo(f"topic {topic}, partition {partition}: {left_out}", err=True)


def _line(record: "TypedRecord") -> str:
    key = "-" if record.key is None else record.key
    value = "deleted" if record.value is None else msgspec.json.encode(record.value).decode()
    reason = f"  (not decoded: {record.undecoded})" if record.undecoded else ""
    return printable(f"{record.partition}:{record.offset}  {key}  {value}{reason}")
