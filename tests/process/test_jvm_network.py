import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from mainstem.process.jvm_network import machine_certificates, proxy_options, trust_options
from tests.support.certificates import self_signed


def test_no_proxy_in_the_environment_means_no_option() -> None:
    assert proxy_options({}) == []
    assert proxy_options({"no_proxy": "localhost"}) == []


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
@pytest.mark.parametrize(
    "value", ["http://proxy.example:3128", "proxy.example:3128", "http://user:pw@proxy.example:3128/"]
)
def test_the_proxy_of_the_environment_becomes_javas(name: str, value: str) -> None:
    assert proxy_options({name: value}) == ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"]


def test_hosts_without_proxy_keep_their_meaning() -> None:
    options = proxy_options({"http_proxy": "http://p:1", "NO_PROXY": "localhost, .example.org"})
    assert options[-1] == "-Dhttp.nonProxyHosts=localhost|*.example.org"


def test_certificates_are_read_from_the_file_the_environment_names(tmp_path: Path) -> None:
    der = [b"first certificate", b"second"]
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("# comment\n" + "\n".join(ssl.DER_cert_to_PEM_cert(one) for one in der))
    assert machine_certificates({"SSL_CERT_FILE": str(bundle)}) == der
    assert machine_certificates({"SSL_CERT_FILE": str(tmp_path / "none"), "PIP_CERT": str(bundle)}) == der


def test_the_store_has_every_certificate(tmp_path: Path) -> None:
    store = tmp_path / "trusted.jks"
    options = trust_options([b"abc", b"de"], store)
    assert f"-Djavax.net.ssl.trustStore={store}" in options
    data = store.read_bytes()
    assert struct.unpack_from(">III", data) == (0xFEEDFEED, 2, 2)
    assert b"\x00\x00\x00\x03abc" in data
    assert b"\x00\x00\x00\x02de" in data


def test_java_reads_the_store(tmp_path: Path, spark: Any) -> None:
    """The certificates of this machine, if it has any, and one more."""
    own = self_signed()[0].public_bytes(Encoding.DER)
    certificates = [*machine_certificates(), own]
    store = tmp_path / "trusted.jks"
    trust_options(certificates, store)
    java, password = spark._jvm.java, spark.sparkContext._gateway.new_array(spark._jvm.char, len("changeit"))
    for place, letter in enumerate("changeit"):
        password[place] = letter
    found = java.security.KeyStore.getInstance("jks")
    found.load(java.io.FileInputStream(str(store)), password)
    read = [bytes(found.getCertificate(name).getEncoded()) for name in found.aliases()]
    assert sorted(read) == sorted(certificates)
