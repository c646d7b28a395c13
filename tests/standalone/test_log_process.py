import json
import subprocess
import sys

import pytest

from mainstem.core import UserError
from mainstem.core.config import BadSetting
from mainstem.log import SWITCH_SECONDS
from mainstem.standalone.log_process import log_directory, log_settings


def test_the_environment_is_above_the_file_and_the_address_above_both(tmp_path):
    file = tmp_path / "mainstem.toml"
    file.write_text("[log]\nread_threads = 2\n[broker]\nport = 1\nnum_partitions = 3\n")
    broker, log = log_settings("127.0.0.2:9", file, {"MAINSTEM_LOG__READ_THREADS": "5"})
    assert (broker.host, broker.port, broker.num_partitions, log.read_threads) == ("127.0.0.2", 9, 3, 5)


def test_without_an_address_the_settings_say_where(tmp_path):
    """The command's default was above the file: `[broker] port` meant nothing."""
    file = tmp_path / "mainstem.toml"
    file.write_text(
        "[broker]\nhost = '127.0.0.3'\nport = 1\nprotocol = 'SSL'\ncertificate_file = 'log.pem'\nkey_file = 'log.key'\n"
    )
    broker, _ = log_settings(None, file, {})
    assert (broker.host, broker.port) == ("127.0.0.3", 1)
    assert broker.certificate_file == str(tmp_path / "log.pem")
    assert log_settings(None, None, {})[0].port == 9092


def test_a_wrong_setting_names_where_it_stands(tmp_path):
    file = tmp_path / "mainstem.toml"
    file.write_text("[log]\nread_treads = 4\n")
    with pytest.raises(BadSetting, match=r"mainstem\.toml: \[log\].*read_treads"):
        log_settings("127.0.0.1:0", file, {})
    with pytest.raises(BadSetting, match=r"(?i)read_treads"):
        log_settings("127.0.0.1:0", None, {"MAINSTEM_LOG__READ_TREADS": "1"})
    with pytest.raises(UserError, match="--listen"):
        log_settings("nowhere", None, {})


def test_what_is_no_setting_of_a_node_is_refused_by_the_log_alone_too(tmp_path):
    """`[borker] port = 1` was silently nothing, and `broker = 1` a traceback."""
    file = tmp_path / "mainstem.toml"
    with pytest.raises(BadSetting, match=r"^MAINSTEM_BORKER__PORT: unknown table \[borker\]$") as refused:
        log_settings("127.0.0.1:0", None, {"MAINSTEM_BORKER__PORT": "1"})
    assert refused.value.hint == "did you mean broker?"
    with pytest.raises(BadSetting, match="no such file") as refused:
        log_settings("127.0.0.1:0", file, {})
    assert refused.value.hint == "give --config a mainstem.toml, or leave it out"
    file.write_text("[borker]\nport = 1\n")
    with pytest.raises(BadSetting, match=rf"^{file}: unknown table \[borker\]$"):
        log_settings("127.0.0.1:0", file, {})
    file.write_text("broker = 1\n")
    with pytest.raises(BadSetting, match=rf"^{file}: \[broker\]: expected a table of settings, found `int`"):
        log_settings("127.0.0.1:0", file, {})
    file.write_text("[sources.shop]\ntype = 'file'\n[log]\nread_threads = 2\n")  # of the other processes
    assert log_settings("127.0.0.1:0", file, {"MAINSTEM_SINKS__LAKE__TYPE": "delta"})[1].read_threads == 2


def test_the_directory_of_a_log_is_made_and_that_of_a_project_refused(tmp_path):
    assert log_directory(tmp_path / "a" / "b").is_dir()
    (tmp_path / "mainstem.json").write_text("{}")
    with pytest.raises(UserError, match="found the data directory of a project"):
        log_directory(tmp_path)
    (tmp_path / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"expected a directory to write to: found a link to nothing$"):
        log_directory(link)
    with pytest.raises(UserError, match=r"expected a directory to write to: found a file$"):
        log_directory(tmp_path / "file" / "log")


def test_a_directory_of_other_things_is_refused(tmp_path):
    """`--data /etc` made a log there."""
    (tmp_path / "lost+found").mkdir()
    log_directory(tmp_path)
    (tmp_path / "passwd").touch()
    with pytest.raises(UserError, match=r"expected the directory of a log, or an empty one, found passwd$"):
        log_directory(tmp_path)
    (tmp_path / "hosts").touch()
    with pytest.raises(UserError, match=r"found hosts and 1 more$"):
        log_directory(tmp_path)
    (tmp_path / "orders-0").mkdir()  # the rest of a log is one
    log_directory(tmp_path)


def test_a_directory_that_cannot_be_looked_at_is_told_by_its_own_name(tmp_path):
    data = tmp_path / ("x" * 300)
    with pytest.raises(UserError, match=r"^--data .*xx: expected a directory to write to: File name too long$"):
        log_directory(data)


def test_what_a_log_never_uses_is_not_imported():
    program = (
        "import json, sys\n"
        "from mainstem.standalone.log_process import log_settings, skip_slow_imports\n"
        "skip_slow_imports()\n"
        "import mainstem.broker.node, crc32c, structlog\n"
        "assert crc32c.crc32c(b'123456789') == 0xE3069283\n"
        "print(json.dumps([name for name in ('hypothesis', 'rich', 'confluent_kafka', 'importlib.metadata')"
        " if sys.modules.get(name)] + [name for name in sys.modules"
        " if name.startswith(('mainstem.broker.groups', 'mainstem.broker.transactions'))]))"  # behind the listeners
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


def test_the_writer_gets_the_interpreter_from_a_busy_loop_and_garbage_is_collected(tmp_path):
    script = (
        "import gc, os, signal, sys\nfrom pathlib import Path\nfrom mainstem.standalone.log_process import run_log\n"
        "gc.disable()\n"  # as `mainstem log start` has it
        "def ready(_):\n"
        "    Path(sys.argv[2]).write_text(f'{sys.getswitchinterval()} {gc.isenabled()}')\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "run_log(Path(sys.argv[1]), '127.0.0.1:0', None, on_ready=ready)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data"), str(tmp_path / "settings")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    seconds, collects = (tmp_path / "settings").read_text().split()
    assert float(seconds) == pytest.approx(SWITCH_SECONDS)
    assert collects == "True"
