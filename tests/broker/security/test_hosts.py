import pytest

from mainstem.broker.security.hosts import host_of


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("::1", "0:0:0:0:0:0:0:1"),
        ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:1"),
        ("FE80::00ab:1%eth0", "fe80:0:0:0:0:0:ab:1%eth0"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1:2:3:4:5"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("*", "*"),
        ("host:name", "host:name"),
        ("", ""),
    ],
)
def test_there_is_one_spelling_of_each_address(address, host):
    """As Java's `InetAddress.getByName(address).getHostAddress()` gives it."""
    assert host_of(address) == host
