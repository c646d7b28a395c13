import pytest

from mainstem import embedded
from mainstem.client.connection import Connection
from tests.support.lakehouse import Lake


@pytest.fixture
def log_connection():
    with embedded() as log:
        yield Connection(log.bootstrap)


@pytest.fixture
def lake(spark, log_connection, tmp_path):
    fixture = Lake(spark, log_connection, tmp_path)
    yield fixture
    fixture.lakehouse.stop()
