"""TLS: renewed certificates, and Java's form of the name in a client's certificate."""

import contextlib
import os
import socket
import ssl
import threading

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from mainstem.broker.security.tls import RenewedContext, distinguished_name
from mainstem.core import ManualClock
from mainstem.core.config import BadSetting
from tests.support.certificates import Authority, named

OID = x509.NameOID


def name_of(authority, *attributes):
    subject = x509.Name([x509.NameAttribute(kind, text) for kind, text in attributes])
    pem, _ = authority.issue("named", subject=subject)
    return distinguished_name(ssl.PEM_cert_to_DER_cert(pem.read_text()))


def test_the_name_is_javas_form_of_rfc_2253(tmp_path):
    """Expected: what `X500Principal.getName()` of Java 17 gives."""
    authority = Authority(tmp_path)
    assert name_of(
        authority, (OID.COUNTRY_NAME, "DE"), (OID.ORGANIZATION_NAME, "Example"), (OID.COMMON_NAME, "app")
    ) == ("CN=app,O=Example,C=DE")
    assert name_of(authority, (OID.COMMON_NAME, 'a,b+c"d\\e<f>g;h=i#j')) == 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'
    assert name_of(authority, (OID.COMMON_NAME, " ü ✓ ")) == "CN=\\ ü ✓\\ "
    assert name_of(authority, (OID.DOMAIN_COMPONENT, "org"), (OID.USER_ID, "u1")) == "UID=u1,DC=org"
    assert name_of(authority, (OID.EMAIL_ADDRESS, "a@b.c"), (OID.COMMON_NAME, "app")) == (
        "CN=app,1.2.840.113549.1.9.1=#16056140622e63"
    )


def test_a_name_of_several_attributes_at_one_place_keeps_them_together(tmp_path):
    subject = x509.Name(
        [
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(OID.COMMON_NAME, "app"), x509.NameAttribute(OID.USER_ID, "u1")]
            ),
        ]
    )
    pem, _ = Authority(tmp_path).issue("app", subject=subject)
    assert set(distinguished_name(ssl.PEM_cert_to_DER_cert(pem.read_text())).split("+")) == {"CN=app", "UID=u1"}


def served_name(context, authority):
    """The common name of the certificate that a new connection is shown."""
    ours, theirs = socket.socketpair()
    client = ssl.create_default_context(cafile=str(authority.file))
    client.check_hostname = False

    def serve() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = context.wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                ours.sendall(outgoing.read())
                incoming.write(ours.recv(65_536))
            else:
                with contextlib.suppress(OSError):  # tickets, for a client that is gone
                    ours.sendall(outgoing.read())
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(theirs) as connection:
            certificate = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True))
            return certificate.subject.rfc4514_string()
    finally:
        thread.join()
        ours.close()


def test_a_renewed_certificate_is_taken_and_one_that_does_not_fit_is_not(tmp_path, monkeypatch):
    logs = structlog.testing.CapturingLogger()
    monkeypatch.setattr("mainstem.broker.security.tls.log", logs)
    clock, authority = ManualClock(), Authority(tmp_path)
    pem, key = authority.issue("log", subject=named("first"))
    context = RenewedContext("listener broker", str(pem), str(key), "", "none", clock)
    assert served_name(context, authority) == "CN=first"
    other = key.read_bytes()
    authority.issue("log", subject=named("second"))
    assert served_name(context, authority) == "CN=first"  # looked at less than a second ago
    clock.advance_ms(2_000)
    assert served_name(context, authority) == "CN=second"
    key.write_bytes(other)
    clock.advance_ms(2_000)
    assert served_name(context, authority) == "CN=second"
    assert [each.args for each in logs.calls] == [("certificate_renewed",), ("certificate_not_renewed",)]
    pem.unlink()
    clock.advance_ms(2_000)
    assert served_name(context, authority) == "CN=second"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("missing", "certificate_file"),
        ("empty", "certificate_file"),
        ("broken", "certificate_file"),
        ("pipe", "certificate_file"),
        ("no key", "key_file"),
        ("key pipe", "key_file"),
        ("other key", "key_file"),
        ("encrypted", "key_file"),
        ("authorities", "client_ca_file"),
        ("authorities pipe", "client_ca_file"),
    ],
)
def test_files_that_do_not_fit_are_told_with_their_names(tmp_path, what, told):
    authority = Authority(tmp_path)
    pem, key = authority.issue("log")
    ca = ""
    if what == "missing":
        pem.unlink()
    elif what == "empty":
        pem.write_text("")
    elif what == "broken":
        pem.write_text(pem.read_text().replace("A", "B", 50))
    elif what == "no key":
        key.write_text("none")
    elif what.endswith("pipe"):
        for file in (pem,) if what == "pipe" else (key,) if what == "key pipe" else ():
            file.unlink()
            os.mkfifo(file)
        if what == "authorities pipe":
            ca = str(tmp_path / "ca")
            os.mkfifo(ca)
    elif what == "other key":
        key.write_bytes(authority.issue("other")[1].read_bytes())
    elif what == "encrypted":
        plain = serialization.load_pem_private_key(key.read_bytes(), None)
        secret = serialization.BestAvailableEncryption(b"secret")
        key.write_bytes(plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    else:
        ca = os.fspath(tmp_path / "nowhere.pem")
    file = {"certificate_file": pem, "key_file": key, "client_ca_file": ca}[told]
    with pytest.raises(BadSetting, match=f"^listener x: {told} {file}: expected"):
        RenewedContext("listener x", str(pem), str(key), ca, "none", ManualClock())
