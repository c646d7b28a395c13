"""What the programs of the other engines share: what they are told, and when they had their first record.

.venv/rivals/quix/bin/python -m bench.nexmark.rivals.quix q5 --bootstrap HOST:PORT --output TOPIC --state DIRECTORY
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Row: TypeAlias = dict[str, Any]

PERSON, AUCTION, BID, BID_BY_BIDDER = (f"nexmark.{each}.json" for each in ("person", "auction", "bid", "bid.by_bidder"))
WINDOW_MS = GAP_MS = 10_000
DELAY_MS = 5_000
COMMIT_SECONDS = 1.0
"""How often each commits, where nothing else is asked for: the defaults are between 0.1 and 5 s, and the end of the
backlog would wait for them.
"""


class Options(NamedTuple):
    query: str
    bootstrap: str
    output: str
    state: Path
    exactly_once: bool
    tail: bool
    commit_seconds: float
    process: int
    addresses: list[str]

    @property
    def group(self) -> str:
        return self.output

    @property
    def side(self) -> dict[int, str]:
        return {int(key): value for key, value in json.loads((self.state / "side.json").read_text()).items()}

    def meet(self) -> None:
        """Return when all processes of the engine are here: a group that some join late is parted twice, in the time
        that is measured, and engines that are at least once then write rows twice.
        """
        (self.state / f"here-{self.process}").touch()
        while len(list(self.state.glob("here-*"))) < len(self.addresses):
            time.sleep(0.01)

    def first_record(self) -> Callable[[], None]:
        """To be called when a record is in hand: writes down when that was first so."""
        path = self.state / f"first-{self.process}"
        return lambda: None if path.exists() else _write(path)


def options() -> Options:
    parser = argparse.ArgumentParser()
    parser.add_argument("query")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--output", required=True, help="topic; also the name of the group")
    parser.add_argument("--state", required=True, type=Path, help="directory of this run, with side.json")
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--tail", action="store_true", help="wait for more at the end of the topics")
    parser.add_argument("--commit-seconds", type=float, default=COMMIT_SECONDS, help="from one commit to the next")
    parser.add_argument("--process", type=int, default=0, help="number of this one")
    parser.add_argument("--addresses", default="", help="of all processes, where they talk to each other")
    found = parser.parse_args()
    addresses = found.addresses.split(",") if found.addresses else []
    return Options(
        found.query,
        found.bootstrap,
        found.output,
        found.state,
        found.exactly_once,
        found.tail,
        found.commit_seconds,
        found.process,
        addresses,
    )


def in_dollars(bid: Row) -> Row:
    return {"auction": bid["auction"], "bidder": bid["bidder"], "price": bid["price"] * 0.908, "at": bid["at"]}


def is_chosen(bid: Row) -> bool:
    return bool(bid["auction"] % 123 == 0)


def chosen(bid: Row) -> Row:
    return {"auction": bid["auction"], "price": bid["price"]}


def enriched(bid: Row, side: dict[int, str]) -> Row:
    return {
        **{name: bid[name] for name in ("auction", "bidder", "price", "at")},
        "value": side[bid["auction"] % 10_000],
    }


def newer(bid: Row, last: Any) -> bool:
    """Whether a bid comes after the last one, kept as (time, price)."""
    return last is None or (bid["at"], bid["price"]) > tuple(last)


def key_of(row: Row) -> str:
    """Rows that replace each other have one key, and so lie in one partition, in their order."""
    return f"{row.get('auction')}-{row.get('bidder', row.get('start'))}"


def last_bid(bid: Row) -> Row:
    return {name: bid[name] for name in ("auction", "bidder", "price", "at")}


def _write(path: Path) -> None:
    path.write_text(str(time.time()))
