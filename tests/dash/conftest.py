from types import SimpleNamespace

import msgspec
import pytest

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.catalog import TopicEntry, read_catalog, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS
from mainstem.client.progress import Marker, Read, Written
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.dash.nodes import Nodes
from mainstem.records.fingerprint import fingerprint_sum
from mainstem.registry.client import Registry
from tests.serve.fleet import Fleet, header
from tests.support.browser import Browser
from tests.support.chromium import is_there
from tests.support.live import running_registry

SCRIPT = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


class Shop:
    """A path in a log: two sources, two versions of a job, a sink; records come when a test says so."""

    def __init__(self, connection):
        self.connection = connection
        ensure_internal_topics(connection)
        ensure_topic(connection, "shop.orders", 3)
        ensure_topic(connection, "shop.customers", 1, config={"cleanup.policy": "compact"})
        for name in ("clicks", "revenue_hourly", "revenue_hourly@2"):
            ensure_topic(connection, name.replace("@", "."), 1)
        ensure_topic(connection, "odd", 2)
        produced = {"shop.orders": "source:shop", "shop.customers": "source:shop", "clicks": "source:site"}
        write_catalog(connection, {f"topic:{t}": TopicEntry(producer=p) for t, p in produced.items()})
        self._writers = {name: TransactionalWriter(connection, name) for name in ("shop", "site")}
        for writer in self._writers.values():
            writer.open()
        self.write("shop", "shop.orders", [(f"o{n}", {"order_id": n, "cents": n * 995 % 7001}) for n in range(240)])
        self.write("shop", "shop.customers", [(f"c{n}", {"customer_id": n, "region": "EMEA"}) for n in range(40)])
        self.write("site", "clicks", [(None, {"path": f"/item/{n}", "ms": n % 90}) for n in range(400)])
        self._jobs()

    def write(self, source, topic, records):
        writer = self._writers[source]
        writer.begin()
        for key, value in records:
            writer.send(topic, None, None if key is None else key.encode(), msgspec.json.encode(value))
        writer.commit({"state": "streaming", "lsn": 0x16B3748} if source == "shop" else {"inode": 7, "position": 40960})

    def _jobs(self):
        versions = {
            number: {
                "code": code,
                "output": output,
                "inputs": {"orders": "shop.orders", "customers": "shop.customers"},
                "determinism": determinism,
                "reason": reason,
            }
            for number, code, output, determinism, reason in (
                ("1", "9f2c41d07be8", "revenue_hourly", "prefix-deterministic", ""),
                ("2", "c07a5b3e1d92", "revenue_hourly.2", "batch-dependent", "late rows depend on batches"),
            )
        }
        sink = {"topics": ["revenue_hourly", "clicks"]}
        write_catalog(
            self.connection,
            {"job:revenue_hourly": {"versions": versions, "current": "1"}, "sink:lakehouse": sink},
        )
        rows = [(b"1", b'{"customer_id":1,"revenue_cents":995}'), (b"2", b'{"customer_id":2,"revenue_cents":1990}')]
        append(self.connection, "revenue_hourly", rows)
        written = {"revenue_hourly": {0: Written(2, fingerprint_sum(rows))}}
        markers = [
            Marker("revenue_hourly", "1", "u1", 12, {"o": {"shop.orders": {0: 70, 1: 70, 2: 60}}}, {}, written),
            Marker("revenue_hourly", "2", "u2", 3, {"o": {"shop.orders": {0: 20, 1: 20, 2: 20}}}, {}, {}),
        ]
        append(self.connection, COMMITS, [(f"{m.job}@{m.version}".encode(), msgspec.json.encode(m)) for m in markers])
        seen = [(None, msgspec.json.encode({"path": f"/item/{n}", "ms": n % 90})) for n in range(300)]
        clicks = Read(end=300, rows=300, hash=fingerprint_sum(seen))
        write_reports(
            self.connection,
            [
                Report(reader="lakehouse", topic="clicks", partition=0, end=300, rows=300, hash=clicks.hash),
                Report(
                    reader="lakehouse", topic="revenue_hourly", partition=0, end=2, rows=2, hash=fingerprint_sum(rows)
                ),
            ],
        )


@pytest.fixture(scope="session")
def shop():
    with embedded() as log:
        yield Shop(Connection(log.bootstrap))


@pytest.fixture(scope="session")
def views(shop, tmp_path_factory):
    """A serving node on the shop's log: what the dashboard knows of it, and whoever writes what it answers."""
    with running_registry(shop.connection) as registry:
        fleet = Fleet(shop.connection, Registry(registry), unique="")
        makers = ("BOEING", "AIRBUS", "EMBRAER")
        fleet.write(fleet.planes, *((f"N{n:03}", makers[n % 3], 50 + n) for n in range(250)))
        basis = fleet.write(fleet.flights, *((f"N{n:03}", makers[n % 3], n) for n in range(20)))
        with fleet.node(tmp_path_factory.mktemp("node")) as client:
            write_catalog(shop.connection, {"node:answers": {"address": client.base_url.netloc.decode()}})
            for view in ("planes", "names", "flights"):
                assert client.get(f"/views/{view}", headers=header(basis)).status_code == 200
            nodes = Nodes({"answers": fleet.config()}, lambda: read_catalog(shop.connection))
            yield SimpleNamespace(fleet=fleet, nodes=nodes, client=client)


@pytest.fixture(scope="session")
def browser():
    if not is_there():
        pytest.skip("no browser: `make browser` fetches one")
    with Browser() as browser:
        yield browser


@pytest.fixture
def pages(browser):
    """Opens addresses as pages; at the end their consoles have to be empty."""
    found = []

    def opened(address, **options):
        found.append(browser.page(**options))
        found[-1].open(address)
        return found[-1]

    yield opened
    problems = [page.problems() for page in found]
    for each in found:
        each.open("about:blank")
    assert not any(problems), problems
