"""Certificates of the tests' own, and their keys.

authority = Authority(tmp_path)
authority.issue("log")                               # tmp_path/log.pem and log.key, for 127.0.0.1 and localhost
authority.issue("app", subject=x509.Name(...))       # a client's
authority.file                                       # tmp_path/ca.pem
"""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def self_signed() -> tuple[x509.Certificate, bytes]:
    """A certificate for 127.0.0.1 that vouches for itself for two days, and its private key as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return certificate, key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


_HERE = (x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost"))


class Authority:
    """Signs certificates; everything is a PEM file in `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = named(f"authority {name}")
        certificate = self._signed(self._subject, self._key.public_key(), _HERE, authority=True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, *, subject: x509.Name | None = None, hosts: Sequence[x509.GeneralName] = _HERE
    ) -> tuple[Path, Path]:
        """The files of a new certificate for `hosts` (127.0.0.1 and localhost), and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = named(name) if subject is None else subject
        certificate = self._signed(subject, key.public_key(), hosts, authority=False)
        pem, key_file = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        pem.write_bytes(certificate.public_bytes(encoding))
        key_file.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
        return pem, key_file

    def _signed(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        hosts: Sequence[x509.GeneralName],
        *,
        authority: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
