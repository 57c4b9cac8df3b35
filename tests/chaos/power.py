"""power: what a disk may hold after the power failed.

The shim's record of a run lists what the process did to files, in order. replay() takes the first
operations of it and makes the folder that a disk may show when the power fails right behind them:

  * what was written to a file since its last fsync may be there, be missing, or be there in part;
  * what happened to the names in a folder since its last fsync may be forgotten from some point on.
    Within a folder the order is kept, as journals do; between folders, or names and bytes, not;
  * what was synced is there.
"""

import os

MODES = ("lost", "names", "bytes", "mixed")  # what reached the disk of that which was not synced
SECTOR = 512


class File:
    """synced: the bytes on the disk; pending: (offset, bytes) or (size, None), a new size."""

    def __init__(self, synced=b""):
        self.synced, self.pending = bytes(synced), []

    def bytes(self, chosen):
        data = bytearray(self.synced)
        for offset, piece in chosen:
            if piece is None:
                data = data[:offset] + bytes(max(0, offset - len(data)))
                continue
            if len(data) < offset:
                data += bytes(offset - len(data))
            data[offset : offset + len(piece)] = piece
        return bytes(data)

    def sync(self):
        self.synced, self.pending = self.bytes(self.pending), []

    def left(self, mode, rng):
        if mode in ("lost", "names"):
            return self.synced
        if mode == "bytes":
            return self.bytes(self.pending)
        chosen = []
        for offset, piece in self.pending:
            if rng.random() < 0.5:
                continue
            if piece is not None and len(piece) > SECTOR and rng.random() < 0.5:
                piece = piece[: rng.randrange(len(piece)) // SECTOR * SECTOR]
            chosen.append((offset, piece))
        return self.bytes(chosen)


FOLDER = "folder"


def place(operation):
    return operation[0], operation[-1]


def changes(operation):
    """Whether the disk may hold something else behind it."""
    call, flags = operation[0], operation[3]
    return call != "close" and (call not in ("open", "openat") or flags & os.O_CREAT != 0)


def read_record(path):
    """[(call, result, number, number, [path...], bytes, stack)]"""
    data, at, out = open(path, "rb").read(), 0, []
    while at < len(data):
        end = data.index(b"\n", at)
        call, stack, result, *rest = data[at:end].decode().split("\t")
        numbers, paths, at = [int(x) for x in rest[:2]], rest[2:], end + 1
        piece = b""
        if call in ("write", "pwrite64"):
            piece = data[at : at + int(result)]
            at += int(result)
        out.append((call, int(result), numbers[0], numbers[1], paths, piece, stack))
    return out


class Disk:
    def __init__(self, start, root):
        """start: {path: bytes or FOLDER}, all synced; root: what paths are relative to."""
        self.root = root
        self.now = {path: what if what is FOLDER else File(what) for path, what in start.items()}
        self.synced = dict(self.now)
        self.pending = {}  # folder: [((path, node or None), ...)], each an operation
        self.fds = {}  # fd: path and node

    def path(self, fd, name):
        base = (
            self.root
            if fd == -100
            else os.path.join(self.root, self.fds[fd][0]) if fd in self.fds else "/"
        )
        return os.path.relpath(os.path.normpath(os.path.join(base, name)), self.root)

    def inside(self, path):
        return not path.startswith("..")

    def names(self, *changes):
        for path, node in changes:
            if node is None:
                self.now.pop(path, None)
            else:
                self.now[path] = node
        folders = {os.path.dirname(path) for path, node in changes}
        for folder in folders:
            mine = tuple(c for c in changes if os.path.dirname(c[0]) == folder)
            self.pending.setdefault(folder, []).append(mine)

    def apply(self, operation):
        call, result, first, second, paths, piece, stack = operation
        if call in ("open", "openat", "creat"):
            path = self.path(first, paths[0])
            if not self.inside(path):
                return
            if path not in self.now and path != ".":
                if not second & os.O_CREAT:
                    return
                self.names((path, File()))
            node = self.now.get(path, FOLDER)
            if second & os.O_TRUNC and node is not FOLDER:
                node.pending.append((0, None))
            self.fds[result] = (path, node)
        elif call == "close":
            self.fds.pop(first, None)
        elif call in ("write", "pwrite64") and first in self.fds:
            self.fds[first][1].pending.append((second, piece))
        elif call == "ftruncate" and first in self.fds:
            self.fds[first][1].pending.append((second, None))
        elif call in ("fsync", "fdatasync") and first in self.fds:
            path, node = self.fds[first]
            if node is FOLDER:
                self.sync_folder("" if path == "." else path)
            else:
                node.sync()
        elif call in ("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat"):
            path = self.path(first, paths[0])
            if self.inside(path):
                self.names((path, FOLDER if call.startswith("mkdir") else None))
        elif call.startswith("rename"):
            old, new = self.path(first, paths[0]), self.path(second, paths[1])
            if self.inside(old) and old in self.now:
                self.names((old, None), (new, self.now[old]))

    def put(self, names, operations):
        for operation in operations:
            for path, node in operation:
                if node is None:
                    names.pop(path, None)
                else:
                    names[path] = node

    def sync_folder(self, folder):
        self.put(self.synced, self.pending.pop(folder, []))

    def left(self, mode, rng):
        """{path: bytes or FOLDER}"""
        names = dict(self.synced)
        for folder in sorted(self.pending):
            operations = self.pending[folder]
            count = {"lost": 0, "bytes": 0, "names": len(operations)}.get(
                mode, rng.randint(0, len(operations))
            )
            self.put(names, operations[:count])
        folders = {path for path, node in names.items() if node is FOLDER} | {""}
        out = {}
        for path, node in sorted(names.items()):
            if os.path.dirname(path) in folders:
                out[path] = FOLDER if node is FOLDER else node.left(mode, rng)
            else:
                folders.discard(path)
        return out


def replay(start, root, operations, mode, rng):
    disk = Disk(start, root)
    for operation in operations:
        disk.apply(operation)
    return disk.left(mode, rng)
