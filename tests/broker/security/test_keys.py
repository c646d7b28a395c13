"""Keys of tokens: files that change, addresses that are asked now and then, and one that does not answer."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

import mainstem
from mainstem.broker.security.errors import AuthenticationFailed, Undecided
from mainstem.broker.security.keys import KeyAddress, keys_of
from mainstem.core import ManualClock
from mainstem.core.config import BadSetting
from mainstem.wire.errors import Code
from tests.support.raw import RawClient
from tests.support.waiting import wait_until

KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})


def document(*keys):
    return json.dumps({"keys": [each.as_dict(private=False) for each in keys]})


def names(keys):
    return [each.kid for each in keys.keys]


def asked_for(keys, *, again=False):
    """What is there once what was on its way has come."""
    try:
        return names(keys.current(again=again))
    except Undecided as wait:
        wait.done.result(30)
        return names(keys.current(again=again))


class KeyServer:
    """Answers with `keys`, with an error where there are none; with nothing as long as `hangs` is set."""

    def __init__(self, *keys):
        self.keys = list(keys)
        self.asked = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.sends = b""  # instead of keys
        self.drips = False

    def parts(self):
        whole = self.sends or document(*self.keys).encode()
        if not self.drips:
            yield whole
            return
        for each in whole:
            time.sleep(0.1)
            yield bytes([each])

    @contextlib.contextmanager
    def running(self):
        outer = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked += 1
                outer.goes_on.wait(60)
                self.send_response(200 if outer.keys else 500)
                self.end_headers()
                with contextlib.suppress(OSError):  # who asked has given up
                    for part in outer.parts():
                        self.wfile.write(part)

            def log_message(self, *_):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/jwks"
            finally:
                self.goes_on.set()
                server.shutdown()


def test_a_file_that_changes_is_read_again(tmp_path):
    file = tmp_path / "jwks.json"
    file.write_text(document(KEY))
    keys = keys_of(file.as_uri(), 3600, ManualClock(0))
    assert names(keys.current()) == ["one"]
    file.write_text(document(KEY, OTHER))
    assert names(keys.current()) == ["one", "two"]
    file.write_text("half")
    assert names(keys.current()) == ["one", "two"]
    with pytest.raises(BadSetting, match=r"jwks\.json: expected a JWKS document"):
        keys_of(str(file), 3600, ManualClock(0))
    with pytest.raises(BadSetting, match=r"nowhere: expected a JWKS document"):
        keys_of(str(tmp_path / "nowhere"), 3600, ManualClock(0))


def test_an_address_is_asked_again_for_a_key_that_is_missing_but_not_each_time():
    clock, server = ManualClock(0), KeyServer()
    with server.running() as where:
        keys = KeyAddress(where, 3600, clock)
        for _ in range(3):
            with pytest.raises(AuthenticationFailed):
                asked_for(keys)
        assert server.asked == 1
        server.keys.append(KEY)
        clock.advance_ms(10_000)
        assert asked_for(keys) == ["one"]
        server.keys.append(OTHER)
        assert asked_for(keys, again=True) == ["one"]
        clock.advance_ms(10_000)
        for _ in range(3):
            assert asked_for(keys, again=True) == ["one", "two"]
        assert server.asked == 3
        server.keys.clear()
        clock.advance_ms(3_600_000)
        assert names(keys.current()) == ["one", "two"], "those of before, while there are no others"


def test_who_waits_and_gives_up_spoils_it_for_nobody():
    server = KeyServer(KEY)
    server.goes_on.clear()
    with server.running() as where:
        keys = KeyAddress(where, 3600, ManualClock(0))
        with pytest.raises(Undecided) as wait:
            keys.current()
        assert not wait.value.done.cancel()
        server.goes_on.set()
        assert asked_for(keys) == ["one"]
        assert server.asked == 1


@pytest.mark.parametrize("sent", [b"[" * 400_000, b"no keys", b"x" * 2_000_000], ids=["deep", "other", "large"])
def test_whatever_an_address_sends_leaves_the_keys_of_before(sent):
    clock, server = ManualClock(0), KeyServer(KEY)
    with server.running() as where:
        keys = KeyAddress(where, 3600, clock)
        assert asked_for(keys) == ["one"]
        server.sends = sent
        clock.advance_ms(10_000)
        assert asked_for(keys, again=True) == ["one"]


def test_an_address_that_drips_is_given_up(monkeypatch):
    monkeypatch.setattr("mainstem.broker.security.keys._TIMEOUT_SECONDS", 0.5)
    server = KeyServer(KEY)
    server.drips = True
    with server.running() as where:
        started = time.monotonic()
        with pytest.raises(AuthenticationFailed):
            asked_for(KeyAddress(where, 3600, ManualClock(0)))
        assert time.monotonic() - started < 5


def test_an_address_that_hangs_holds_up_nobody_whose_key_is_known_and_nobody_with_a_password(monkeypatch):
    """Logins of every kind waited for it in the same few threads, and so did the end of the log."""
    monkeypatch.setattr("mainstem.broker.security.keys._SECONDS_BETWEEN_REQUESTS", 0.0)
    server = KeyServer(KEY)

    def bearer(key, algorithm):
        claims = {"sub": "app", "exp": int(time.time()) + 600}
        return f"n,,\x01auth=Bearer {jwt.encode({'alg': algorithm, 'kid': key.kid}, claims, key, [algorithm])}\x01\x01"

    def log_in(raw, mechanism, told):
        raw.call(17, 1, mechanism=mechanism)
        started = time.monotonic()
        answer = raw.call(36, 1, auth_bytes=told.encode())
        return answer.error_code, answer.auth_bytes, time.monotonic() - started < 5

    settings = {
        "protocol": "SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": ["OAUTHBEARER", "PLAIN"],
        "users": {"app": "secret"},
    }
    well = (Code.none, b"", True)
    with server.running() as where, contextlib.ExitStack() as clients:
        with mainstem.embedded(broker={**settings, "sasl_oauthbearer_jwks_endpoint_url": where}) as log:
            first, password, known = (clients.enter_context(RawClient(log.bootstrap)) for _ in range(3))
            assert log_in(first, "OAUTHBEARER", bearer(KEY, "RS256")) == well
            server.goes_on.clear()
            for _ in range(20):
                stranger = clients.enter_context(RawClient(log.bootstrap))
                stranger.call(17, 1, mechanism="OAUTHBEARER")
                stranger.send(36, 1, auth_bytes=bearer(OTHER, "ES256").encode())
            assert log_in(password, "PLAIN", "\0app\0secret") == well
            assert log_in(known, "OAUTHBEARER", bearer(KEY, "RS256")) == well
            wait_until(lambda: server.asked == 2, "the address is asked for the strangers' key, once")
            ends = time.monotonic()
        assert time.monotonic() - ends < 5
