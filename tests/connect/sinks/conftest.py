import pytest

from mainstem import embedded
from mainstem.client.connection import Connection


@pytest.fixture
def log_connection():
    with embedded() as log:
        yield Connection(log.bootstrap)
