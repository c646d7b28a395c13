"""Jobs that the test plays: each version appends rows to its output, and says what it has read for them."""

import uuid

import msgspec
from confluent_kafka import Producer

from mainstem.client.basis import Basis, furthest
from mainstem.client.catalog import read_catalog, with_cutover, write_catalog
from mainstem.client.internal import CATALOG, COMMITS, PROGRESS, job_key
from mainstem.client.progress import Marker, Progress
from mainstem.client.topics import ensure_topic
from mainstem.registry import avro
from tests.serve.fleet import PLANE

CLASS = {"tables": [], "determinism": "prefix-deterministic", "reason": ""}


class PlayedJob:
    """Makes a table of what stands in the fleet's flights; its version is in the column `manufacturer`. Each batch is a
    transaction, which leaves markers behind its rows.
    """

    def __init__(self, fleet, registry):
        self.fleet, self.registry = fleet, registry
        self.name = f"seats-{uuid.uuid4().hex[:8]}"
        self.schemas, self.positions, self.batches, self.source = {}, {}, {}, {}

    def output(self, version):
        return self.name if version == "1" else f"{self.name}.v{version}"

    def start(self, version, *, known=True):
        """`known`: its topic is in the catalog, too."""
        topic, connection = self.output(version), self.fleet.connection
        ensure_topic(connection, topic, 2)
        self.schemas[version] = self.registry.register(f"{topic}-value", PLANE)
        self.positions[version], self.batches[version] = {topic: {}}, 0
        if known:
            self.announce(version)
        about = {
            each: {"output": self.output(each), "inputs": {"flights": self.fleet.flights}, "tables": []}
            | {"code": "c0de", "determinism": "prefix-deterministic", "reason": ""}
            for each in self.schemas
        }
        write_catalog(connection, {f"job:{self.name}": {"versions": about, "current": min(self.schemas)}})

    def announce(self, version):
        topic = self.output(version)
        entry = {"kind": "changelog", "key": ["tailnum"], "subject": f"{topic}-value", "producer": f"job:{self.name}"}
        write_catalog(self.fleet.connection, {f"topic:{topic}": entry})

    def write(self, tailnum, seats):
        """A row of the source; its basis."""
        basis = self.fleet.write(self.fleet.flights, (tailnum, "x", seats))
        self.source = furthest(self.source, basis.positions)
        return basis

    def run(self, version, *rows):
        """A batch that has read all of the source, and makes these rows of it: (tailnum, seats)."""
        topic, connection = self.output(version), self.fleet.connection
        records = [
            (
                tailnum.encode(),
                avro.encode(
                    self.schemas[version], PLANE, {"tailnum": tailnum, "manufacturer": f"v{version}", "seats": seats}
                ),
            )
            for tailnum, seats in rows
        ]
        key = job_key(self.name, version)
        producer = Producer(connection.confluent(transactional_id=key, partitioner="murmur2_random", log_level=2))
        producer.init_transactions(60)
        producer.begin_transaction()
        ends = {}
        for name, value in records:
            producer.produce(topic, value, name, on_delivery=lambda _, m: ends.update({m.partition(): m.offset() + 1}))
        assert producer.flush(60) == 0
        self.positions[version] = furthest(self.positions[version], {topic: ends})
        progress = Progress(self.name, version, self.batches[version], self.source, {}, self.positions[version])
        read, batch = {"flights": self.source}, self.batches[version]
        marker = Marker(self.name, version, "played", batch, read, ends=self.positions[version])
        producer.produce(COMMITS, msgspec.json.encode(marker), key.encode())
        producer.produce(PROGRESS, msgspec.json.encode(progress), key.encode())
        producer.commit_transaction(60)
        self.batches[version] += 1
        return Basis(self.fleet.log, self.positions[version])

    def retire(self, version):
        """The basis of the command."""
        entry = read_catalog(self.fleet.connection)[f"job:{self.name}"]
        about = entry["versions"].pop(version)
        entry |= {"current": min(entry["versions"]), "retired": entry.get("retired", {}) | {version: about}}
        return Basis(self.fleet.log, {CATALOG: {0: write_catalog(self.fleet.connection, {f"job:{self.name}": entry})}})


def cutover(fleet, *targets):
    """Move readers of (job, version); the basis of the command."""
    at = {job.name: job.positions[version] for job, version in targets}
    catalog = read_catalog(fleet.connection)
    record = with_cutover(catalog, {job.name: version for job, version in targets}, at, len(catalog))
    return Basis(fleet.log, {CATALOG: {0: write_catalog(fleet.connection, record)}})
