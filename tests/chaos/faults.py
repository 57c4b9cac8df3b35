"""faults: what may happen to a command, a class each, and what must hold then."""

import errno, glob, os, random, re, resource, shutil, signal, subprocess, threading, time

import power
from lab import CACHE, HANGS, Wrong, differences, essence, leftovers, plain, snapshot
from lab import some_of_each, state_of, text


def check_code(code, allowed, err, silent=False):
    if code not in allowed:
        raise Wrong(
            "exit code %d, not %s: %s"
            % (code, " or ".join(map(str, sorted(allowed))), text(err)[-300:])
        )
    if code > 0 and not silent and not re.search(rb"^weft: .{8,}", err, re.M):
        raise Wrong("exit code %d without a sentence: %r" % (code, err[-200:]))


def check_files(lab, command, folder, when, but=()):
    found = {name: data for name, data in snapshot(folder).items() if name not in but}
    wanted = {
        name: data
        for name, data in lab.know(command).files.items()
        if name in found or not CACHE.search(name)
    }
    wrong = differences(wanted, found)
    if wrong:
        raise Wrong("%s: %s" % (when, wrong))


def check_again(lab, command, folder):
    """Step 5 of a case, once for each state of the folder that faults have left."""
    state = state_of(command, folder)
    if state in lab.sound and not lab.keep:
        return
    code, out, err = lab.run(folder, command)
    if code != 0:
        raise Wrong("the same command again ends with %d: %s" % (code, text(err)[-300:]))
    check_files(lab, command, folder, "after the same command again")
    if b"{" in out[:1] and plain(out) != lab.know(command).out:
        raise Wrong("after the same command again its output differs")
    if os.path.exists(os.path.join(folder, "out/stage.json")):
        verified = subprocess.run([lab.weft, "verify", "out"], cwd=folder, capture_output=True)
        if verified.returncode != 0:
            raise Wrong("weft verify: " + text(verified.stderr))
    lab.sound.add(state)


class Fault:
    """cases(): the numbers of all cases, in no order; rng or None for some_of_each. Where there is
    no end of them, draw()."""

    allowed = {0, 3, 4}

    def cases(self, lab, command, rng):
        return []

    def knows(self, lab, command):
        """Whether the command has been looked at, so that its cases can be counted."""
        return command in lab.known

    def draw(self, lab, command, rng):
        return None

    def strike(self, lab, command, folder, *numbers):
        """Steps 1 and 2."""
        code, out, err = lab.run(folder, command, self.chaos(*numbers))
        check_code(code, self.allowed | lab.also_ends_with(command), err)
        return code

    def is_tidy(self, lab, command, *numbers):
        """Nothing is left behind even before the command runs again."""
        return True

    def try_case(self, lab, command, *numbers):
        folder = lab.fresh(command)
        lab.know(command)
        code = self.strike(lab, command, folder, *numbers)
        tidy = self.is_tidy(lab, command, *numbers)
        if code == 0:
            check_files(lab, command, folder, "exit code 0", [] if tidy else leftovers(folder))
        elif code is not None and code > 0 and tidy:
            left = [name for name in leftovers(folder) if ".part" not in name or "/." in name]
            if left:  # parts are saved work
                raise Wrong("exit code %d, and left behind: %s" % (code, " ".join(left)))
        check_again(lab, command, folder)
        lab.done(folder)


class KillAtCall(Fault):
    """kill -9 before (0) or after (1) system call N"""

    allowed = {0, -9}

    def cases(self, lab, command, rng):
        numbers = some_of_each(lab.know(command).places, rng)
        return [(n, behind) for n in numbers for behind in (0, 1)]

    def chaos(self, n, behind):
        return "%s=%d" % ("killed" if behind else "kill", n)


class KillAtTime(Fault):
    """kill -9 after N microseconds, two threads; then once more, after M"""

    allowed, signals = {0, -9}, (signal.SIGKILL,)

    def draw(self, lab, command, rng):
        most = int(1e6 * lab.know(command).seconds)
        return rng.randrange(1000, most + 2000), rng.randrange(1000, most + 2000)

    def strike(self, lab, command, folder, *delays):
        for delay in delays:
            process = lab.start(folder, command, "", 2)
            time.sleep(delay / 1e6)
            process.send_signal(self.signals[delay % len(self.signals)])
            out, err = lab.end(process)
            check_code(process.returncode, self.allowed, err, silent=True)
        return process.returncode


class SignalAtTime(KillAtTime):
    """SIGINT or SIGTERM after N microseconds"""

    # Before there is anything to save a signal ends the program at once, and silently.
    allowed, signals = {0, 130, 143, -2, -15}, (signal.SIGINT, signal.SIGTERM)

    def draw(self, lab, command, rng):
        return (rng.randrange(2000, int(1e6 * lab.know(command).seconds) + 3000),)


CODES = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOMEM, errno.EMFILE, errno.EINTR)
# Without these calls nothing can be tidied up; who could not take a lock does not touch its file.
TIDYING = ("unlink", "unlinkat", "rmdir", "close", "flock", "newfstatat")


class FailCall(Fault):
    """system call N fails, once (0) or from then on (1), with an errno"""

    def cases(self, lab, command, rng):
        """Each call has one errno. EINTR comes once only: such calls are made again."""
        code = lambda n, on: CODES[n % (len(CODES) - on)]
        numbers = some_of_each(lab.know(command).places, rng)
        return [(n, on, code(n, on)) for n in numbers for on in (0, 1)]

    def chaos(self, n, on, code):
        return "fail=%d,on=%d,errno=%d" % (n, on, code)

    def is_tidy(self, lab, command, n, on, code):
        return lab.know(command).calls[n - 1] not in TIDYING


class ShortCall(Fault):
    """system call N moves half of its bytes"""

    def cases(self, lab, command, rng):
        moving, calls = ("read", "write", "pread64", "pwrite64"), lab.know(command).calls
        return [(n,) for n in some_of_each(lab.know(command).places, rng) if calls[n - 1] in moving]

    def chaos(self, n):
        return "short=%d" % n


class FailMemory(Fault):
    """request N for memory fails, once (0) or with all later ones (1)"""

    allowed = {0, 4}

    def cases(self, lab, command, rng):
        numbers = some_of_each(lab.know(command).requests, rng)
        return [(n, on) for n in numbers for on in (0, 1)]

    def chaos(self, n, on):
        return "alloc=%d,on=%d" % (n, on)


class FullDisk(Fault):
    """N bytes fit on the disk: 0 by ENOSPC, 1 by a limit on files, 2 on a small tmpfs (root)"""

    allowed = {0, 4}

    def draw(self, lab, command, rng):
        size = sum(map(len, lab.know(command).files.values()))
        kinds = 3 if os.geteuid() == 0 and lab.mounts else 2
        return rng.randrange(0, max(2, size)), rng.randrange(kinds)

    def strike(self, lab, command, folder, room, kind):
        if kind == 2:
            return self.strike_tmpfs(lab, command, folder, room)
        limits = (
            (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))) if kind == 1 else None
        )
        code, out, err = lab.run(
            folder, command, "" if kind == 1 else "room=%d" % room, limits=limits
        )
        check_code(code, self.allowed, err)
        return code

    def strike_tmpfs(self, lab, command, folder, room):
        """All lies on the small disk, and is then copied to a large one."""
        disk = folder + ".disk"
        os.mkdir(disk)
        inputs = sum(
            4096 + os.path.getsize(os.path.join(at, name)) // 4096 * 4096 + 4096
            for at, _, names in os.walk(folder)
            for name in names
        )
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=%d" % (inputs + room + 8192), "none", disk],
            check=True,
        )
        try:
            shutil.copytree(folder, disk, dirs_exist_ok=True)
            code, out, err = lab.run(disk, command)
            check_code(code, self.allowed, err)
            shutil.rmtree(folder)
            shutil.copytree(disk, folder)
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
            os.rmdir(disk)
        return code


class JumpingClock(Fault):
    """clocks jump, by SEED"""

    allowed = {0}

    def draw(self, lab, command, rng):
        return (rng.randrange(1, 1 << 30),)

    def chaos(self, seed):
        return "clock=%d" % seed


class PowerLoss(Fault):
    """the power fails after operation N of a recorded run; a mode of power.py, SEED"""

    def __init__(self):
        self.records, self.lock = {}, threading.Lock()

    def record(self, lab, command):
        with self.lock:
            if command not in self.records:
                folder, path = lab.fresh(command), os.path.join(lab.folder, command + ".record")
                start = {}
                for at, folders, names in os.walk(folder):
                    for name in folders:
                        start[os.path.relpath(os.path.join(at, name), folder)] = power.FOLDER
                    for name in names:
                        with open(os.path.join(at, name), "rb") as file:
                            start[os.path.relpath(os.path.join(at, name), folder)] = file.read()
                code, out, err = lab.run(folder, command, "record=" + path)
                if code != 0:
                    raise SystemExit(
                        "chaos: %s ends with %d when recorded: %s" % (command, code, text(err))
                    )
                self.records[command] = (start, folder, power.read_record(path))
                lab.done(folder)
            return self.records[command]

    def knows(self, lab, command):
        return command in self.records

    def cases(self, lab, command, rng):
        operations = self.record(lab, command)[2]
        numbers = some_of_each([power.place(op) for op in operations], rng)
        numbers = [n for n in numbers if power.changes(operations[n - 1])] + [len(operations)]
        modes = range(len(power.MODES))
        return [(n, mode, n * 4 + mode) for n in sorted(set(numbers)) for mode in modes]

    def strike(self, lab, command, folder, n, mode, seed):
        start, root, operations = self.record(lab, command)
        shutil.rmtree(folder)
        os.mkdir(folder)
        left = power.replay(start, root, operations[:n], power.MODES[mode], random.Random(seed))
        for path, what in sorted(left.items()):
            target = os.path.join(folder, path)
            if what is power.FOLDER:
                os.mkdir(target)
            else:
                with open(target, "wb") as file:
                    file.write(what)
        if n == len(operations):  # the program has ended, and said that all is done
            wanted, found = lab.know(command).files, snapshot(folder)
            wrong = differences(
                wanted, {name: data for name, data in found.items() if name in wanted}
            )
            if wrong:
                raise Wrong("lost after exit code 0: " + wrong)
        return None


class Together(Fault):
    """N processes make the same output at once, some wait, one may be killed; SEED"""

    allowed = {0, 5, -9}

    def draw(self, lab, command, rng):
        return rng.randrange(2, 5), rng.randrange(1 << 30)

    def strike(self, lab, command, folder, count, seed):
        rng, processes = random.Random(seed), []
        wait = [rng.random() < 0.6 for i in range(count)]
        killed = rng.randrange(count) if rng.random() < 0.5 else -1
        for i in range(count):
            processes.append(lab.start(folder, command, "", 1, ("--wait",) if wait[i] else ()))
            time.sleep(rng.random() * lab.know(command).seconds / 2)
        if killed >= 0:
            processes[killed].kill()
        ends = [(lab.end(process)[1], process.returncode) for process in processes]
        for i, (err, code) in enumerate(ends):
            check_code(
                code, {0} | ({-9} if i == killed else set()) | (set() if wait[i] else {5}), err
            )
        if killed < 0 and not any(code == 0 for err, code in ends):
            raise Wrong("none of %d processes did it" % count)
        if killed < 0 and leftovers(folder):
            raise Wrong("left behind: " + " ".join(leftovers(folder)))
        return 0 if any(code == 0 for err, code in ends) else None

    def is_tidy(self, lab, command, count, seed):
        return False  # one may have been killed last


def input_files(lab, command):
    """Inputs that the command leaves as they are, but recipes, which have a fuzz target."""
    known, out = lab.know(command), []
    for name in lab.takes(command):
        at = os.path.join(lab.inputs, name)
        for path in glob.glob(at + "/*") if os.path.isdir(at) else [at]:
            name = os.path.relpath(path, lab.inputs)
            if not path.endswith((".conf", ".manifest")) and known.files.get(name) == essence(path):
                out.append(name)
    return sorted(out)


class CutInput(Fault):
    """input FILE becomes empty before system call N, while it is open and mapped"""

    def cases(self, lab, command, rng):
        numbers = some_of_each(lab.know(command).places, rng)
        return [(k, n) for k in range(len(input_files(lab, command))) for n in numbers]

    def is_tidy(self, lab, command, k, n):
        return False  # as when killed: the next writer cleans up

    def strike(self, lab, command, folder, k, n):
        name = input_files(lab, command)[k]
        path = os.path.join(folder, name)
        code, out, err = lab.run(folder, command, "cut=%d,file=%s" % (n, path))
        check_code(code, {0, 3}, err)
        shutil.copy(os.path.join(lab.inputs, name), path)
        return code


class BadInput(Fault):
    """input FILE damaged by SEED: bits, bytes, ends; also under sanitizers with --sanitized"""

    memory, times, seconds = 100 << 20, 4, 2.0

    def draw(self, lab, command, rng):
        files = input_files(lab, command)
        return (rng.randrange(len(files)), rng.randrange(1 << 30)) if files else None

    def damage(self, data, rng):
        data = bytearray(data)
        for i in range(rng.choice((1, 1, 2, 8))):
            at, kind = rng.randrange(len(data) + 1), rng.randrange(5)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del data[at:]
            elif kind == 2:
                del data[at : at + rng.randrange(1, 64)]
            elif kind == 3:
                data[at:at] = bytes(rng.randrange(256) for i in range(rng.randrange(1, 64)))
            else:
                data[at : at + 8] = rng.choice(
                    (b"\xff" * 8, bytes(8), b"99999999", b"\x00\x00\x00\x00\x00\x00\x00\x80")
                )
        return bytes(data)

    def strike(self, lab, command, folder, k, seed):
        name = input_files(lab, command)[k]
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            data = self.damage(file.read(), random.Random(seed))
        with open(path, "wb") as file:
            file.write(data)
        process = lab.start(folder, command)
        _, err = process.stdout.read(), process.stderr.read()
        pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        process.stderr.close()
        check_code(process.returncode, {0, 3}, err)
        used, cpu = usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime
        # What is read as if it were sound costs what the command costs.
        most = self.seconds + (lab.know(command).seconds if process.returncode == 0 else 0)
        if used > self.memory + self.times * len(data) or cpu > most:
            raise Wrong("%d bytes cost %d MB and %.1f s" % (len(data), used >> 20, cpu))
        if lab.sanitized:
            other = lab.fresh(command)
            shutil.copy(path, os.path.join(other, name))
            words = [lab.sanitized] + lab.words(command)[1:]
            run = subprocess.run(words, cwd=other, capture_output=True, timeout=HANGS)
            if b"Sanitizer" in run.stderr or b"runtime error" in run.stderr:
                raise Wrong("a sanitizer speaks: " + text(run.stderr)[:600])
            lab.done(other)
        shutil.rmtree(folder)
        shutil.copytree(lab.fresh(command), folder)
        return None


FAULTS = {
    "kill-call": KillAtCall(),
    "kill-time": KillAtTime(),
    "signal": SignalAtTime(),
    "fail": FailCall(),
    "short": ShortCall(),
    "memory": FailMemory(),
    "disk": FullDisk(),
    "power": PowerLoss(),
    "together": Together(),
    "clock": JumpingClock(),
    "cut": CutInput(),
    "bad-file": BadInput(),
}
