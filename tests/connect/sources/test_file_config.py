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


def test_a_path_that_no_file_can_have_is_refused():
    """It was a bug of ours at every try."""
    with pytest.raises(BadSetting, match=r"expected a path, found 'a\\x00b'"):
        convert({"type": "file", "path": "a\0b", "topic": "lines"}, FileSourceConfig, where="here")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037"])
def test_an_encoding_whose_lines_do_not_end_with_one_byte_is_refused(encoding):
    settings = {"type": "file", "path": "a.log", "topic": "lines", "encoding": encoding}
    with pytest.raises(BadSetting, match=f"lines end with the byte 0x0A, found '{encoding}'"):
        convert(settings, FileSourceConfig, where="here")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "shift_jis", "gb18030"])
def test_encodings_of_which_lines_can_be_cut(encoding):
    settings = {"type": "file", "path": "a.log", "topic": "lines", "encoding": encoding}
    assert convert(settings, FileSourceConfig, where="here").encoding == encoding


def test_an_unknown_encoding_is_named():
    with pytest.raises(BadSetting, match="unknown encoding 'utf-9'"):
        convert(
            {"type": "file", "path": "a.log", "topic": "lines", "encoding": "utf-9"}, FileSourceConfig, where="here"
        )
