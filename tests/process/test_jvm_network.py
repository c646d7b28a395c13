import ssl
import struct
import subprocess
from pathlib import Path

import pytest

from mainstem.process.java import find_java
from mainstem.process.jvm_network import machine_certificates, proxy_options, trust_options


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


def test_java_reads_the_store(tmp_path: Path) -> None:
    certificates = machine_certificates()
    if not certificates:
        pytest.skip("this machine has no list of trusted certificates")
    store = tmp_path / "trusted.jks"
    trust_options(certificates, store)
    program = tmp_path / "Read.java"
    program.write_text(
        "import java.io.*; import java.security.*;\n"
        "public class Read { public static void main(String[] a) throws Exception {\n"
        '  KeyStore s = KeyStore.getInstance("jks");\n'
        '  try (var in = new FileInputStream(a[0])) { s.load(in, "changeit".toCharArray()); }\n'
        "  System.out.print(s.size()); } }\n"
    )
    java = str(find_java().executable)
    modules = subprocess.run([java, "--list-modules"], check=True, capture_output=True, text=True).stdout
    if "jdk.compiler" not in modules:
        pytest.skip("this Java cannot compile; the fetch in make setup proves the same")
    done = subprocess.run([java, str(program), str(store)], check=True, capture_output=True, text=True)
    assert int(done.stdout) == len(certificates)
