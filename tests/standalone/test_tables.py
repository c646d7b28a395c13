from pathlib import Path

import msgspec
import pytest

from mainstem.core.config import PROJECT_FILE, BadSetting
from mainstem.standalone.config import NodeConfig, load_config
from mainstem.standalone.tables import TABLES, check_tables


def test_the_table_with_a_typo_is_named_with_where_it_stands():
    check_tables({"log": {}, "sinks": {}}, {}, {}, where="f.toml")
    with pytest.raises(BadSetting, match=r"^f\.toml: unknown table \[lgo\]$") as refused:
        check_tables({"lgo": {}}, {"lgo": {}}, {}, where="f.toml")
    assert refused.value.hint == "did you mean log?"
    with pytest.raises(BadSetting, match=r"^MAINSTEM_LGO__X: unknown table \[lgo\]$"):
        check_tables({"lgo": {"x": "1"}}, {}, {"MAINSTEM_LGO__X": "1"}, where="f.toml")


def test_every_table_that_is_read_is_known(tmp_path: Path):
    (tmp_path / PROJECT_FILE).write_text("".join(f"[{table}]\n" for table in TABLES))
    load_config(tmp_path, {})
    read = {field.name for field in msgspec.structs.fields(NodeConfig)} - {"connect_sinks", "lakehouses"}
    assert read < set(TABLES)
