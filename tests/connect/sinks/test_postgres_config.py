"""The settings of a PostgreSQL replica."""

import pytest

from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.core.config import BadSetting, convert


def test_defaults():
    config = convert({"type": "postgres", "url": "postgresql://x", "source": "shop"}, PostgresReplicaConfig, where="f")
    assert (config.schema, config.source) == ("public", "shop")


@pytest.mark.parametrize("wrong", [{"commit_interval_ms": -1}, {"report_interval_ms": "soon"}, {"schema": ""}])
def test_a_value_out_of_range_names_the_setting(wrong):
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        convert({"type": "postgres", "url": "x", "source": "s", **wrong}, PostgresReplicaConfig, where="f")
