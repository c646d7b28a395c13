import pytest

from mainstem.core.config import BadSetting
from mainstem.web.server import AddressInUse, bound


def test_an_address_that_cannot_be_bound_is_one_line():
    with bound("127.0.0.1:0", "listen", "--listen") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}: Address already in use"):
            bound(f"127.0.0.1:{port}", "listen", "--listen")
    for wrong in ("9600", "127.0.0.1:port", "::1:0", "no-such-host.invalid:1"):
        with pytest.raises(BadSetting, match="listen"):
            bound(wrong, "listen", "--listen")
