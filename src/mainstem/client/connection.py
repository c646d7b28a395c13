"""Where the log is and how to reach it: one frozen struct, passed to everything that talks to a broker."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from mainstem.core.address import parse_address
from mainstem.core.config import PROJECT_FILE, convert, overlay_environment, read_toml
from mainstem.core.wrong_settings import SASL_PROTOCOLS, TLS_PROTOCOLS, without_effect

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

_LOGIN_MODULE = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Security(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS and SASL of one cluster. The default is plain text, as on a laptop's loopback.

    Attributes:
        protocol: Kafka's `security.protocol`.
        mechanism: of SASL; empty without it.
        username: of SASL.
        password: of SASL; better given as `MAINSTEM_SECURITY__PASSWORD` than written into a file.
        ca_file: PEM of the authorities that sign the brokers' certificates; empty: those of the system.
        certificate_file: PEM of the client's own certificate, where the broker asks for one.
        key_file: PEM of its private key.
        check_hostname: whether a broker's certificate must be for the name it was reached by.
    """

    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism = ""
    username: str = ""
    password: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.sasl and not self.mechanism:
            raise ValueError(f"protocol {self.protocol} needs a mechanism, found none: set mechanism")
        if self.mechanism and not self.sasl:
            raise without_effect(f"mechanism {self.mechanism}", self.protocol, SASL_PROTOCOLS)
        if bool(self.certificate_file) != bool(self.key_file):
            given, absent = sorted(("certificate_file", "key_file"), key=lambda name: not getattr(self, name))
            raise ValueError(f"{given} needs {absent}, found none: set both or neither")
        for file in ("ca_file", "certificate_file"):
            if getattr(self, file) and not self.tls:
                raise without_effect(file, self.protocol, TLS_PROTOCOLS)

    def __repr__(self) -> str:
        return f"Security(protocol={self.protocol!r}, mechanism={self.mechanism!r}, username={self.username!r})"

    def below(self, directory: Path) -> "Security":
        """The same with relative file names below `directory`, the project's."""
        files = {name: getattr(self, name) for name in ("ca_file", "certificate_file", "key_file")}
        absolute = {name: str(directory / file) for name, file in files.items() if file}
        return msgspec.structs.replace(self, **absolute)

    @property
    def tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def load_security(project: Path, environment: Mapping[str, str] = os.environ) -> Security:
    """Table `[security]` of a project, and nothing else of it; the default where there is no project.

    Raises:
        BadSetting: the message names the file and the setting.
    """
    file = project / PROJECT_FILE
    tree = overlay_environment(read_toml(file) if file.exists() else {}, environment)
    return convert(tree.get("security", {}), Security, where=f"{file}: [security]").below(project.resolve())


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster's bootstrap address (`host:port`, several with commas) and its security."""

    bootstrap: str
    security: Security = Security()

    def __post_init__(self) -> None:
        _ = self.addresses  # a bad address is told where it is given, not at the first request

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of every bootstrap server."""
        return tuple(parse_address(each, "bootstrap", lowest_port=1) for each in self.bootstrap.split(","))

    def confluent(self, **settings: Any) -> dict[str, Any]:
        """Settings for confluent-kafka; `isolation_level="read_committed"` sets `isolation.level`."""
        security = self.security
        result: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "security.protocol": security.protocol}
        if security.sasl:
            result |= {"sasl.mechanism": security.mechanism, "sasl.username": security.username}
            result["sasl.password"] = security.password
        if security.tls:
            algorithm = "https" if security.check_hostname else "none"
            result |= _given({"ssl.ca.location": security.ca_file, "ssl.endpoint.identification.algorithm": algorithm})
            result |= _given(
                {"ssl.certificate.location": security.certificate_file, "ssl.key.location": security.key_file}
            )
        dotted = {name if name == "log_level" else name.replace("_", "."): value for name, value in settings.items()}
        return result | dotted

    def aiokafka(self) -> dict[str, Any]:
        """Keyword arguments that aiokafka's connections take."""
        security = self.security
        result: dict[str, Any] = {"security_protocol": security.protocol}
        if security.sasl:
            result |= {"sasl_mechanism": security.mechanism, "sasl_plain_username": security.username}
            result["sasl_plain_password"] = security.password
        if security.tls:
            result["ssl_context"] = self.ssl_context()
        return result

    def spark(self) -> dict[str, str]:
        """Options of Spark's Kafka connector, `kafka.bootstrap.servers` included."""
        security = self.security
        result = {"bootstrap.servers": self.bootstrap, "security.protocol": security.protocol}
        if security.sasl:
            result["sasl.mechanism"] = security.mechanism
            name, password = (_quoted(text) for text in (security.username, security.password))
            result["sasl.jaas.config"] = (
                f"{_LOGIN_MODULE[security.mechanism]} required username={name} password={password};"
            )
        if security.tls:
            result["ssl.endpoint.identification.algorithm"] = "https" if security.check_hostname else ""
            if security.ca_file:
                result |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca_file}
            if security.certificate_file:
                chain, key = Path(security.certificate_file).read_text(), Path(security.key_file).read_text()
                result |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
        return {f"kafka.{name}": value for name, value in result.items()}

    def ssl_context(self) -> ssl.SSLContext:
        """A client context that trusts `ca_file`, or the machine's authorities where none is given."""
        security = self.security
        context = ssl.create_default_context(cafile=security.ca_file or None)
        context.check_hostname = security.check_hostname
        if security.certificate_file:
            context.load_cert_chain(security.certificate_file, security.key_file)
        return context


def records_are_gone(error: str) -> bool:
    """Whether Spark 4.2 says by this that no records are there any more where a query goes on."""
    signs = ("UnknownTopicOrPartition", "data may have been lost", "data may have been missed", "OffsetOutOfRange")
    return any(sign in error for sign in signs)


def _given(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value}


def _quoted(text: str) -> str:
    """A JAAS string: quotes and backslashes escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
