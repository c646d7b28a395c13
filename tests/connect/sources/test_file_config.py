import pytest

from mainstem.connect.sources.file_config import FileSourceConfig
from mainstem.core.config import BadSetting, convert


def test_path_and_topic_are_enough():
    config = convert({"type": "file", "path": "a.log", "topic": "lines"}, FileSourceConfig, where="here")
    assert config.end_marker
    assert config.max_line_bytes < config.batch_bytes


def test_an_unknown_setting_is_named():
    with pytest.raises(BadSetting, match="unknown field `pth`"):
        convert({"type": "file", "pth": "a.log", "topic": "lines"}, FileSourceConfig, where="here")
