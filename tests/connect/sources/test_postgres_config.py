"""The settings of a PostgreSQL source need no driver."""

import subprocess
import sys

import pytest

from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.core.config import BadSetting, convert


def test_a_source_needs_its_address_and_nothing_else_and_keeps_the_password_to_itself():
    config = convert({"type": "postgres", "url": "postgresql://me:s3cret@x/shop"}, PostgresSourceConfig, where="f")
    assert "s3cret" not in f"{config} {config!r}"
    with pytest.raises(BadSetting, match="url"):
        convert({"type": "postgres"}, PostgresSourceConfig, where="f")


@pytest.mark.parametrize(
    "wrong", [{"partitions": 0}, {"on_gap": "ignore"}, {"commit_interval_ms": -1}, {"max_transaction_rows": 0}]
)
def test_a_value_out_of_range_names_the_setting(wrong):
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        convert({"type": "postgres", "url": "x", **wrong}, PostgresSourceConfig, where="f")


def test_settings_are_read_without_a_driver():
    program = (
        "import sys; import mainstem.connect.worker; sys.exit('psycopg2' in sys.modules or 'fastavro' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
