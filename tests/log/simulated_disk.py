"""A disk in memory that can lose what was not synced, refuse a call, or be switched off in the middle.

After a power cut a file holds what was synced, and of every page written since then any state it went through; its
size is any of those it had. A directory holds what was synced, and a prefix of the changes made since then; where names
are out of order, a prefix of the changes of each name.
"""

import copy
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

PAGE = 4096

Choose = Callable[[int], int]
"""Draws a number from 0 to its argument, both included."""


def adversary(seed: int) -> Choose:
    """Chooses at random; half the time all or nothing, which is where the mistakes are."""
    random = Random(seed)
    return lambda most: random.choice((0, most, random.randint(0, most), random.randint(0, most)))


class FileNode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytes(data)
        self.pending: list[tuple[str, int, bytes]] = []
        self.lost = False
        """A sync has failed: what is read is not what the disk gets."""

    def write(self, data: bytes, position: int) -> None:
        if position > len(self.data):
            self.data += bytes(position - len(self.data))
        self.data[position : position + len(data)] = data
        at = position
        while at < position + len(data):  # page by page: each reaches the disk on its own
            end = min((at // PAGE + 1) * PAGE, position + len(data))
            self.pending.append(("write", at, data[at - position : end - position]))
            at = end

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data += bytes(size - len(self.data))
        self.pending.append(("truncate", size, b""))

    def sync(self) -> None:
        if self.lost:
            self.durable = bytes(self.after_crash(lambda most: most).data)
        else:
            self.durable = bytes(self.data)
        self.pending.clear()

    def fail_to_sync(self) -> None:
        """What was to be synced stays in the page cache, and no later sync brings it to the disk (Linux)."""
        self.lost = self.lost or bool(self.pending)
        self.pending.clear()

    def after_crash(self, choose: Choose) -> "FileNode":
        data = bytearray(self.durable)
        sizes = [len(data)]
        by_page: dict[int, list[tuple[int, bytes]]] = {}
        for kind, position, content in self.pending:
            if kind == "truncate":
                by_page = {p: w for p, w in by_page.items() if p * PAGE < position}
                sizes.append(position)
            else:
                by_page.setdefault(position // PAGE, []).append((position, content))
                sizes.append(max(sizes[-1], position + len(content)))
        for page in sorted(by_page):
            writes = by_page[page]
            for position, content in writes[: choose(len(writes))]:
                if position > len(data):
                    data += bytes(position - len(data))
                data[position : position + len(content)] = content
        size = sizes[choose(len(sizes) - 1)]
        data = data[:size] + bytes(max(0, size - len(data)))
        return FileNode(bytes(data))


class Change(NamedTuple):
    """Of a directory: a name leads to `node`, to what another name led to, or to nothing any more."""

    name: str
    node: "FileNode | DirectoryNode | None" = None
    renamed_from: str = ""

    def apply(self, entries: "dict[str, FileNode | DirectoryNode]") -> None:
        if self.renamed_from:
            entries[self.name] = entries.pop(self.renamed_from)
        elif self.node is not None:
            entries[self.name] = self.node
        else:
            entries.pop(self.name, None)


class DirectoryNode:
    def __init__(self) -> None:
        self.entries: dict[str, FileNode | DirectoryNode] = {}
        self.durable: dict[str, FileNode | DirectoryNode] = {}
        self.pending: list[Change] = []

    def change(self, change: Change) -> None:
        change.apply(self.entries)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def _by_name(self) -> list[list[Change]]:
        """What was done to one name, or to names that renames connect, keeps its order."""
        groups: list[tuple[set[str], list[Change]]] = []
        for change in self.pending:
            names = {change.name, change.renamed_from or change.name}
            connected = [group for group in groups if names & group[0]]
            groups = [group for group in groups if not names & group[0]]
            groups.append(
                (
                    names.union(*(others for others, _ in connected)),
                    [*(each for _, changes in connected for each in changes), change],
                )
            )
        return [changes for _, changes in groups]

    def after_crash(self, choose: Choose, *, names_in_order: bool) -> "DirectoryNode":
        entries = dict(self.durable)
        for changes in [self.pending] if names_in_order else self._by_name():
            for change in changes[: choose(len(changes))]:
                change.apply(entries)
        result = DirectoryNode()
        for name, node in sorted(entries.items()):
            if isinstance(node, FileNode):
                result.entries[name] = node.after_crash(choose)
            else:
                result.entries[name] = node.after_crash(choose, names_in_order=names_in_order)
        result.durable = dict(result.entries)
        return result


class SimulatedDisk:
    """Files below `root`, in memory."""

    def __init__(self, root: Path, tree: DirectoryNode | None = None) -> None:
        self.root = root
        self.tree = tree or DirectoryNode()
        self.lock = threading.RLock()
        self.changes = 0
        """Calls so far that changed or synced something."""
        self.off_at: int | None = None
        """From this change on the power is off."""
        self.refusals: list[tuple[str, int, str]] = []
        """(call, error number, part of the path below `root`): each refuses one call."""
        self.hints: list[tuple[Path, int, int]] = []
        """What `begin_writeback` was told: file, position and size."""
        self.syncs: list[Path] = []

    # -- what a test does

    def power_off_after(self, changes: int) -> None:
        self.off_at = self.changes + changes

    def refuse(self, call: str, error: int, path: str = "") -> None:
        """Let the next `call` on a path that contains `path` below `root` fail."""
        self.refusals.append((call, error, path))

    def after_power_cut(self, choose: Choose, *, names_in_order: bool = True) -> "SimulatedDisk":
        """What is there then; most file systems bring the changes of names to the disk in their order."""
        return SimulatedDisk(self.root, self.tree.after_crash(choose, names_in_order=names_in_order))

    def after_kill(self) -> "SimulatedDisk":
        """The process died, the machine did not: all that was written is there, durable or not."""
        with self.lock:
            return SimulatedDisk(self.root, copy.deepcopy(self.tree))

    @property
    def is_off(self) -> bool:
        return self.off_at is not None and self.changes >= self.off_at

    def _changing(self, call: str, path: Path) -> None:
        if self.is_off:
            raise OSError(errno.EIO, "the power is off", str(path))
        self.changes += 1
        below = f"/{path.relative_to(self.root)}"  # the directories above have names of their own: "pytest-10"
        for refusal in self.refusals:
            if refusal[0] == call and refusal[2] in below:
                self.refusals.remove(refusal)
                raise OSError(refusal[1], os.strerror(refusal[1]), str(path))

    def _node(self, path: Path) -> FileNode | DirectoryNode:
        node: FileNode | DirectoryNode = self.tree
        for part in path.relative_to(self.root).parts:
            if not isinstance(node, DirectoryNode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
            if part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            node = node.entries[part]
        return node

    def _directory(self, path: Path) -> DirectoryNode:
        node = self._node(path)
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return node

    def file(self, path: Path) -> FileNode:
        node = self._node(path)
        assert isinstance(node, FileNode)
        return node

    # -- the seam

    def open(self, path: Path, *, create: bool = False) -> "SimulatedFile":
        with self.lock:
            parent = self._directory(path.parent)
            if path.name not in parent.entries:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
                self._changing("create", path)
                node = FileNode()
                parent.change(Change(path.name, node))
            return SimulatedFile(self, path, self.file(path))

    def read_file(self, path: Path) -> bytes:
        with self.lock:
            return bytes(self.file(path).data)

    def write_atomically(self, path: Path, data: bytes) -> None:
        neighbour = path.with_name(path.name + ".new")
        file = self.open(neighbour, create=True)
        file.truncate(0)
        file.write([data], 0)
        file.sync()
        self.rename(neighbour, path)
        self.sync_directory(path.parent)

    def write_file(self, path: Path, data: bytes) -> None:
        file = self.open(path, create=True)
        file.truncate(0)
        file.write([data], 0)

    def set_time(self, path: Path, time_ms: int) -> None:
        pass

    def rename(self, old: Path, new: Path) -> None:
        with self.lock:
            self._changing("rename", old)
            assert old.parent == new.parent
            parent = self._directory(old.parent)
            if old.name not in parent.entries:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
            parent.change(Change(new.name, renamed_from=old.name))

    def unlink(self, path: Path) -> None:
        with self.lock:
            parent = self._directory(path.parent)
            if path.name in parent.entries:
                self._changing("unlink", path)
                parent.change(Change(path.name))

    def make_directory(self, path: Path) -> None:
        with self.lock:
            parent = self._directory(path.parent)
            if path.name not in parent.entries:
                self._changing("mkdir", path)
                node = DirectoryNode()
                parent.change(Change(path.name, node))

    def remove_tree(self, path: Path) -> None:
        with self.lock:
            for entry in self.list(path):
                self.unlink(entry)
            self._changing("rmdir", path)
            self._directory(path.parent).change(Change(path.name))

    def sync_directory(self, path: Path) -> None:
        with self.lock:
            node = self._directory(path)
            self._changing("sync_directory", path)
            node.sync()

    def list(self, path: Path) -> list[Path]:
        with self.lock:
            return sorted(path / name for name in self._directory(path).entries)

    def file_size(self, path: Path) -> int:
        with self.lock:
            return len(self.file(path).data)

    def exists(self, path: Path) -> bool:
        with self.lock:
            try:
                self._node(path)
            except OSError:
                return False
            return True

    def is_directory(self, path: Path) -> bool:
        with self.lock:
            return isinstance(self._node(path), DirectoryNode)


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: Path, node: FileNode) -> None:
        self.disk = disk
        self.path = path
        self.node = node

    def write(self, pieces: list[bytes], position: int) -> None:
        with self.disk.lock:
            self.disk._changing("write", self.path)
            self.node.write(b"".join(pieces), position)

    def read(self, size: int, position: int) -> bytes:
        with self.disk.lock:
            return bytes(self.node.data[position : position + size])

    def cached_share(self, size: int, position: int) -> float:
        return 1.0

    def send(self, descriptor: int, size: int, position: int) -> int:
        return -1

    def read_around_cache(self, buffer: memoryview, position: int, block: int) -> int:
        return self.read_cached(buffer, position)

    def read_cached(self, buffer: memoryview, position: int) -> int:
        with self.disk.lock:
            data = self.node.data[position : position + len(buffer)]
            buffer[: len(data)] = data
            return len(data)

    def sync(self) -> None:
        with self.disk.lock:
            try:
                self.disk._changing("sync", self.path)
            except OSError:
                if not self.disk.is_off:
                    self.node.fail_to_sync()
                raise
            self.disk.syncs.append(self.path)
            self.node.sync()

    def begin_writeback(self, position: int, size: int) -> None:
        """What is not synced may be lost, or not, all the same."""
        self.disk.hints.append((self.path, position, size))

    def truncate(self, size: int) -> None:
        with self.disk.lock:
            self.disk._changing("truncate", self.path)
            self.node.truncate(size)

    def size(self) -> int:
        with self.disk.lock:
            return len(self.node.data)
