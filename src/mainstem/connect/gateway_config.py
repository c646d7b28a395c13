"""Settings of the gateway and the collector in it; without the rooms themselves, which take long to import."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mainstem.core.address import parse_address
from mainstem.core.config import BadSetting


class CollectorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the collector.

    Attributes:
        name: of the collector; of two gateways of one name the newer one wins, and the older one ends. Projects that
            share a Kafka need a name each.
        body_bytes: largest body, after gunzip.
        batch_events: most events in one request.
        event_bytes: largest event, as it is posted and as a record; must be below the topic's `max.message.bytes`.
        window_records: how many of a topic's last records are remembered for duplicates.
        waiting_bytes: how much may wait for the log, and how much may be held of bodies that came or are on their way,
            before clients are told to slow down (429).
    """

    name: str = "collector"
    body_bytes: Annotated[int, Meta(ge=1)] = 16 << 20
    batch_events: Annotated[int, Meta(ge=1)] = 10_000
    event_bytes: Annotated[int, Meta(ge=1)] = 512 << 10
    window_records: Annotated[int, Meta(ge=1)] = 100_000
    waiting_bytes: Annotated[int, Meta(ge=1)] = 64 << 20


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[gateway]`: the registry, the collector and, for browsers, the dashboard, one process.

    Attributes:
        listen: HOST:PORT; port 0 takes a free one. There is no authentication yet: keep it on loopback.
        collector: limits and name of the collector.
    """

    listen: str = "127.0.0.1:9600"
    collector: CollectorConfig = CollectorConfig()

    def __post_init__(self) -> None:
        try:
            parse_address(self.listen, "listen")
        except BadSetting as error:
            raise ValueError(str(error)) from None
