"""Kafka's own command-line tools, unmodified: what they print and how they end.

They have no suite of their own that runs without a cluster around it, so each test is a few commands and what Apache
Kafka 4.3.0 answers to them. The jars are those of tests/support/kafka.lock; three programs of Kafka's own system tests
are among them: ClientCompatibilityTest, TransactionalMessageCopier and LogCompactionTester.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

from conformance.frame import Result, Server, run_each
from conformance.tools import cluster, files, groups, records, settings, transactions
from conformance.tools.kit import Tools
from tests.support import kafka_tools

TESTS: tuple[Callable[[Tools], None], ...] = (
    *records.TESTS,
    *settings.TESTS,
    *groups.TESTS,
    *transactions.TESTS,
    *cluster.TESTS,
    *files.TESTS,
)


class KafkaTools:
    """All of `TESTS`, each with a directory of its own below `work` for what its tools said."""

    title = "command-line tools of Apache Kafka 4.3.0"
    expected = Path(__file__).parents[1] / "tools.toml"
    # Rights are looked at; who does not log in may do everything, since Kafka's broker is one of them.
    log_settings = """
[broker]
authorizer_enable = true
super_users = ["User:ANONYMOUS"]
allow_everyone_if_no_acl_found = true
"""
    kafka_settings: ClassVar[Mapping[str, str]] = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        "log.cleaner.backoff.ms": "1000",
    }
    restarts = False

    def prepare(self) -> None:
        kafka_tools.classpath()

    def run(self, server: Server, work: Path, only: str | None) -> Iterator[Result]:
        yield from run_each(TESTS, lambda name: nullcontext(Tools(server, work / name)), only)
