import resource

import pytest

from mainstem.log.limits import connections_limit, open_files_limit


@pytest.fixture(autouse=True)
def the_limit_is_put_back():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_and_half_is_left_for_connections():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert open_files_limit(300) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 600


def test_what_the_system_does_not_give_is_not_used():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10 * hard
    assert open_files_limit(wanted) == hard // 2


@pytest.mark.parametrize(
    ("limit", "wanted", "segments", "connections"),
    [(400, 16_384, 200, 150), (4_000, 16_384, 2_000, 1_920), (4_000, 100, 100, 3_820), (64, 16_384, 32, 8)],
)
def test_connections_leave_room_for_segments_and_some_more(monkeypatch, limit, wanted, segments, connections):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert (open_files_limit(wanted), connections_limit(wanted)) == (segments, connections)
