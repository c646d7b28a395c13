"""However many clients send, and however slowly, the memory that their bodies take is bounded."""

import asyncio

import pytest

from mainstem.core.bodies import Bodies, BodiesFull, BodyTooLarge, BodyTooSlow


async def upload(*parts, stalled=False):
    """A client sends `parts`, and then its end unless it is stalled."""
    for part in parts:
        yield part
    if stalled:
        await asyncio.Event().wait()


def test_a_body_is_held_until_its_request_is_answered():
    async def scenario():
        bodies = Bodies(10, seconds=60)
        with bodies.hold() as held:
            assert (
                await held.read(upload(b"12345", b"67890", b"alone it may be larger"), 100)
                == b"1234567890alone it may be larger"
            )
            with bodies.hold() as other, pytest.raises(BodiesFull, match="requests hold 32 bytes"):
                await other.read(upload(b"1"), 100)
            assert bodies.held == 32
        assert bodies.held == 0

    asyncio.run(scenario())


def test_stalled_bodies_hold_no_more_than_the_limit_and_not_for_ever():
    async def post(bodies):
        with bodies.hold() as held:
            await held.read(upload(b"x" * 30, stalled=True), 100)

    async def scenario():
        bodies = Bodies(100, seconds=0.1)
        posts = [asyncio.ensure_future(post(bodies)) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert bodies.held == 90
        errors = await asyncio.gather(*posts, return_exceptions=True)
        assert bodies.held == 0
        return errors

    errors = asyncio.run(scenario())
    assert [type(error) for error in errors] == [BodyTooSlow] * 3 + [BodiesFull] * 17


@pytest.mark.parametrize(("parts", "expected"), [((b"123", b"456"), 0), ((), 6)])
def test_a_body_that_is_too_large_is_refused(parts, expected):
    async def scenario():
        with Bodies(100, seconds=60).hold() as held:
            await held.read(upload(*parts), 5, expected=expected)

    with pytest.raises(BodyTooLarge, match="larger than 5 bytes"):
        asyncio.run(scenario())
