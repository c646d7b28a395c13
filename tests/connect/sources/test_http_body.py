"""However many clients send, and however slowly, the memory that their bodies take is bounded."""

import asyncio

import pytest

from mainstem.connect.sources.http_append import Overloaded
from mainstem.connect.sources.http_body import Bodies
from mainstem.connect.sources.http_events import BadRequest


class Upload:
    """A request whose client sends `parts`, and then its end unless it is stalled."""

    def __init__(self, *parts, stalled=False, headers=None):
        self.headers = headers or {}
        self._parts, self._stalled = parts, stalled

    async def stream(self):
        for part in self._parts:
            yield part
        if self._stalled:
            await asyncio.Event().wait()


def test_a_body_is_held_until_its_request_is_answered():
    async def scenario():
        bodies = Bodies(10)
        with bodies.hold() as held:
            assert (
                await held.read(Upload(b"12345", b"67890", b"alone it may be larger"), 100)
                == b"1234567890alone it may be larger"
            )
            with bodies.hold() as other, pytest.raises(Overloaded, match="requests hold 32 bytes"):
                await other.read(Upload(b"1"), 100)
            assert bodies.held == 32
        assert bodies.held == 0

    asyncio.run(scenario())


def test_stalled_bodies_hold_no_more_than_the_limit_and_not_for_ever():
    async def post(bodies):
        with bodies.hold() as held:
            await held.read(Upload(b"x" * 30, stalled=True), 100)

    async def scenario():
        bodies = Bodies(100, seconds=0.1)
        posts = [asyncio.ensure_future(post(bodies)) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert bodies.held == 90
        errors = await asyncio.gather(*posts, return_exceptions=True)
        assert bodies.held == 0
        return errors

    errors = asyncio.run(scenario())
    assert [type(error) for error in errors] == [BadRequest] * 3 + [Overloaded] * 17
    assert {(error.status, error.code) for error in errors[:3]} == {(408, "body_too_slow")}


@pytest.mark.parametrize("upload", [Upload(b"123", b"456"), Upload(headers={"content-length": "6"})])
def test_a_body_that_is_too_large_is_refused(upload):
    async def scenario():
        with Bodies(100).hold() as held:
            await held.read(upload, 5)

    with pytest.raises(BadRequest, match="larger than 5 bytes"):
        asyncio.run(scenario())
