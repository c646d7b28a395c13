"""`mainstem topic list|describe|create|alter|delete`."""

from collections.abc import Iterable

import click
import msgspec

from mainstem.cli.output import confirm, json_option, to_json, to_table
from mainstem.cli.target import Target, connection_options
from mainstem.client.internal import CATALOG, SCHEMAS
from mainstem.core import UserError

MOST_PARTITIONS = 10_000
"""Of a topic: our log takes no more, nor does the controller of an Apache Kafka in one request."""


class TopicLine(msgspec.Struct, frozen=True):
    """One topic in `topic list`. `offsets` is the sum of the spans of its partitions: records and control records."""

    name: str
    partitions: int
    replication_factor: int
    offsets: int


class PartitionLine(msgspec.Struct, frozen=True):
    """One partition in `topic describe`; the two ends are not included."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class TopicDetail(msgspec.Struct, frozen=True):
    """`topic describe --json`."""

    name: str
    partitions: list[PartitionLine]
    config: dict[str, str]
    own: list[str]
    """Those of `config` that were set for the topic; the others are the log's defaults."""


class TopicMade(msgspec.Struct, frozen=True):
    """`topic create --json`: the topic as it is now, also where it was there before."""

    name: str
    partitions: int
    replication_factor: int


class TopicDeleted(msgspec.Struct, frozen=True):
    """`topic delete --json`: what is gone, and who of a project wrote and read it."""

    name: str
    offsets: int
    writers: list[str]
    readers: list[str]


class TopicAltered(msgspec.Struct, frozen=True):
    """`topic alter --json`: what was changed; null where the log's default holds again."""

    name: str
    config: dict[str, str | None]


@click.group(short_help="List, describe, create, alter, delete topics.")
def topic() -> None:
    """List, describe, create, alter and delete topics."""


@topic.command("list", short_help="Every topic.")
@click.option("--all", "internal", is_flag=True, help="Also topics whose names begin with _.")
@json_option
@connection_options
def list_command(internal: bool, as_json: bool, target: Target) -> None:
    """Show every topic: partitions, replication, offsets.

    Names that begin with _ are those of the topics that Mainstem and Kafka keep for themselves: without --all they are
    left out, a topic of your own with such a name too.
    """
    from mainstem.client import topics

    connection = target.connect()
    shown = {
        name: each for name, each in topics.list_topics(connection).items() if internal or not name.startswith("_")
    }
    spans = topics.spans(connection, {name: each.partitions for name, each in shown.items()})
    lines = [
        TopicLine(name, each.partitions, each.replication_factor, spans[name])
        for name, each in shown.items()
        if name in spans
    ]
    rows = [msgspec.structs.astuple(line) for line in lines]
    click.echo(to_json(lines) if as_json else to_table(["topic", "partitions", "replicas", "offsets"], rows))


@topic.command(short_help="Partitions and settings of a topic.")
@click.argument("name")
@json_option
@connection_options
def describe(name: str, as_json: bool, target: Target) -> None:
    """Show each partition of topic NAME: log start offset, last stable offset, high watermark; and its settings, those
    that were set for it first, then the log's defaults.
    """
    from mainstem.client import topics

    connection = target.connect()
    starts = topics.start_offsets(connection, name)
    stable = topics.end_offsets(connection, name, committed=True)
    ends = topics.end_offsets(connection, name)
    partitions = [PartitionLine(p, starts[p], stable[p], ends[p]) for p in sorted(ends)]
    settings = topics.describe_settings(connection, [name])[name]
    own = [key for key, each in settings.items() if each.own]
    detail = TopicDetail(name, partitions, {key: each.value for key, each in settings.items()}, own)
    if as_json:
        click.echo(to_json(detail))
        return
    replicas = topics.describe(connection, name).replication_factor
    columns = ["partition", "log start", "last stable", "high watermark"]
    click.echo(to_table(columns, [msgspec.structs.astuple(line) for line in partitions]))
    click.echo()
    by_origin = sorted(settings.items(), key=lambda item: not item[1].own)
    rows = [(key, each.value, "this topic" if each.own else "default") for key, each in by_origin]
    click.echo(to_table(["setting", "value", "of"], rows))
    if replicas == 1 and (line := topics.what_can_be_lost(name, detail.config)) is not None:
        click.echo(f"\n{line}")


@topic.command(short_help="Create a topic.")
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(1, MOST_PARTITIONS), default=1, show_default=True, help="How many it has."
)
@click.option("--config", "settings", multiple=True, metavar="NAME=VALUE", help="A Kafka topic setting; repeatable.")
@json_option
@connection_options
def create(name: str, partitions: int, settings: tuple[str, ...], as_json: bool, target: Target) -> None:
    """Create topic NAME; one that exists with these partitions and settings is left as it is, another is refused."""
    from mainstem.client import topics

    config = named_values(settings, "--config")
    made = topics.ensure_topic(target.connect(), name, partitions, config, same_settings=True)
    if as_json:
        click.echo(to_json(TopicMade(made.name, made.partitions, made.replication_factor)))
        return
    click.echo(f"topic {made.name}: {made.partitions} partitions, {made.replication_factor} replicas")


@topic.command(short_help="Change settings of a topic.")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE...")
@json_option
@connection_options
def alter(name: str, settings: tuple[str, ...], as_json: bool, target: Target) -> None:
    """Change settings of topic NAME, as `retention.ms=-1`, all or none; without a value, as `retention.ms=`, the log's
    default holds again.
    """
    from mainstem.client import topics

    changes = {key: value or None for key, value in named_values(settings, "SETTING=VALUE").items()}
    if "partitions" in changes:
        raise UserError(
            f"topic {name}: the number of its partitions is no setting",
            hint="`mainstem topic create --partitions` gives it to a new topic; Kafka's `kafka-topics --alter --partitions`"
            " adds some to this one, and keys change their place",
        )
    topics.alter_config(target.connect(), name, changes)
    if as_json:
        click.echo(to_json(TopicAltered(name, changes)))
        return
    for key, value in changes.items():
        click.echo(f"topic {name}: {key} = {'the default' if value is None else value}")


@topic.command(short_help="Delete a topic and its records.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connection_options
def delete(name: str, yes: bool, as_json: bool, target: Target) -> None:
    """Delete topic NAME and all its records. Who writes and reads it is told before."""
    from mainstem.client import topics
    from mainstem.client.catalog import read_catalog, users_of

    if name == SCHEMAS or name.startswith("__"):
        raise UserError(f"topic {name}: kept by Mainstem or Kafka for itself, and needed: not deleted")
    connection = target.connect()
    offsets = topics.spans(connection, {name: topics.describe(connection, name).partitions}).get(name, 0)
    catalog = read_catalog(connection) if CATALOG in topics.list_topics(connection) else {}
    writers, readers = users_of(catalog, name)
    if writers or readers:
        text = f"written by {', '.join(writers) or 'no source that is known, and no job'}, read by {', '.join(readers) or 'nobody'}"
        click.echo(f"topic {name}: {text}", err=True)
    if not yes:
        confirm(f"delete topic {name} with {offsets:,} offsets for good?")
    topics.delete(connection, [name])
    deleted = TopicDeleted(name, offsets, list(writers), list(readers))
    click.echo(to_json(deleted) if as_json else f"topic {name}: deleted")


def named_values(settings: Iterable[str], what: str) -> dict[str, str]:
    """`NAME=VALUE` texts by name; `what` is what they were given as.

    Raises:
        UserError: one has no name or no equals sign.
    """
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise UserError(f"{what}: expected NAME=VALUE, found {setting!r}")
        values[key] = value
    return values
