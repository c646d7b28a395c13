import resource

import pytest

from mainstem.log.limits import open_files_limit


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
