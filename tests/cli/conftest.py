import pytest
import structlog

from mainstem import embedded


@pytest.fixture(scope="module")
def cli_log():
    """The address of a log of the module's own."""
    with embedded() as log:
        yield log.bootstrap


@pytest.fixture(autouse=True)
def logging_as_before():
    """A command that runs in this process sets it up for itself; tests that come later look for warnings."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()  # an embedded log is silent only where nobody has configured anything
    if before is not None:
        structlog.configure(**before)
    structlog.contextvars.clear_contextvars()
