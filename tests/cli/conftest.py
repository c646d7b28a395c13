import pytest

from mainstem import embedded


@pytest.fixture(scope="module")
def cli_log():
    """The address of a log of the module's own."""
    with embedded() as log:
        yield log.bootstrap
