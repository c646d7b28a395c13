"""Let a JVM reach the network as Python on this machine does: its proxies, and the certificates the machine trusts.

A Java that comes from a wheel trusts its own list only, and no Java reads `HTTPS_PROXY`; behind a company's proxy
both matter.
"""

import hashlib
import os
import ssl
import struct
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

_PASSWORD = "changeit"  # noqa: S105 - Java's usual one; the file holds public certificates
_DEBIAN_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def proxy_options(environment: Mapping[str, str] | None = None) -> list[str]:
    """Java's options for `http_proxy`, `https_proxy` and `no_proxy`, in either case."""
    environment = os.environ if environment is None else environment

    def value(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    options = []
    for scheme in ("http", "https"):
        proxy = value(f"{scheme}_proxy")
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    without = [host.strip() for host in value("no_proxy").split(",") if host.strip()]
    if options and without:
        options.append("-Dhttp.nonProxyHosts=" + "|".join(f"*{host}" if host[0] == "." else host for host in without))
    return options


def machine_certificates(environment: Mapping[str, str] | None = None) -> list[bytes]:
    """The certificates (DER) that programs other than Java trust here; empty if the machine has no such list."""
    environment = os.environ if environment is None else environment
    named = (environment.get(name) for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"))
    places = [*(Path(name) for name in named if name), *_default_bundles()]
    for path in places:
        try:
            text = path.read_text(encoding="ascii", errors="ignore")
        except OSError:
            continue
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        found = [part.split(end)[0] for part in text.split(begin)[1:]]
        if found:
            return [ssl.PEM_cert_to_DER_cert(f"{begin}{body}{end}\n") for body in found]
    return []


def trust_options(certificates: list[bytes], store: Path) -> list[str]:
    """Write `certificates` to `store` and return the options that make a JVM trust these and no others.

    The file is Java's own key store format, since a JVM reads no PEM and the wheel's has no keytool:

        u4 0xFEEDFEED, u4 version 2, u4 entries
        entry: u4 2 (a trusted certificate), utf alias, u8 ms since 1970, utf "X.509", u4 length, DER
        SHA-1 over the password (UTF-16), "Mighty Aphrodite" and all of the above
    """
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", 2) + _utf(f"ca{number}") + struct.pack(">Q", 0) + _utf("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    keyed = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    store.write_bytes(body + keyed.digest())
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=jks",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def _default_bundles() -> list[Path]:
    compiled_in = ssl.get_default_verify_paths()
    return [Path(path) for path in (compiled_in.cafile, compiled_in.openssl_cafile) if path] + [_DEBIAN_BUNDLE]


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
