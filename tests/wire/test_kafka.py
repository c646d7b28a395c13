import subprocess
import sys


def test_hypothesis_is_not_imported_for_kio_and_can_be_afterwards():
    """It was half a second of every process, wherever the tests' packages are installed."""
    rooms = "mainstem.wire.codec, mainstem.client.transaction, mainstem.audit.scan, mainstem.process.sink_task"
    program = f"import sys, {rooms}; assert 'hypothesis' not in sys.modules; import hypothesis.strategies"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
