#!/usr/bin/env python3
"""chaos: every command of weft against an unkind system, and whether the results are still right.

    make chaos [SECONDS=300]            a share of every fault, drawn with SEED
    make chaos-long [MINUTES=15]        the same with sanitizers and libFuzzer
    make chaos-full                     all faults that can be counted, to their end: hours; goes on
                                        where it was stopped, as long as the program is the same
    tests/chaos/chaos.py --repeat CASE  one case again, as a failure prints it; keeps its folder
    tests/chaos/chaos.py --list         commands, faults, and how many cases each has

A case is COMMAND:FAULT:NUMBERS, and says all there is to know. It runs in a folder of its own:

    1  the command's inputs are copied, the command runs with the fault
    2  its exit code is one that docs/commands.md has for this fault, its message is a sentence
    3  unless it was killed, no temporary file and no lock is left behind
    4  with exit code 0 all files are those of an undisturbed run, bit for bit
    5  the same command, undisturbed, ends with 0; now all files are those of an undisturbed run,
       and there are no others

Seconds that something took are left out of comparisons, nothing else is.

Some faults can be counted: those at a system call, at a request for memory, behind a write. Calls
that are made at the same place, with the same return addresses on the stack, are alike: of these
the first and the last are tried, and in a short campaign one between, which SEED chooses.

    commands.txt  the commands: to add one, add a line
    faults.py     the faults, a class each
    shim.c        a system for one process: fails and kills at calls, refuses memory ...
    power.py      what a disk may hold after a power loss
    lab.py        inputs, undisturbed runs, comparisons
"""

import argparse, concurrent.futures, glob, hashlib, itertools, math, os, random, re, shutil, signal
import subprocess, sys, tempfile, time

from faults import FAULTS
from lab import COMMANDS, ROOT, Lab, Wrong, fetches


def listed(lab, fault, command, seed):
    """All cases of a fault that can be counted; seed None: in a full campaign."""
    rng = None if seed is None else random.Random("%s of %s %d" % (fault, command, seed))
    return FAULTS[fault].cases(lab, command, rng)


def all_cases(lab, fault, commands, seed):
    """Cases of one fault; commands take turns, each fault in an order of its own, so that a short
    campaign meets other commands with another seed. Lists are shuffled and end, draws do not."""

    def of(command):
        rng = random.Random("%s %s %s" % (fault, command, seed))
        cases = listed(lab, fault, command, seed)
        rng.shuffle(cases)
        yield from cases
        while not cases:
            drawn = FAULTS[fault].draw(lab, command, rng)
            if drawn is None:
                return
            yield drawn

    order = list(commands)
    random.Random("%s %s" % (fault, seed)).shuffle(order)
    turns = [(command, of(command)) for command in order]
    while turns:
        for turn in list(turns):
            case = next(turn[1], None)
            if case is None:
                turns.remove(turn)
            else:
                yield (turn[0], fault) + case


def name_of(case):
    return ":".join(map(str, case))


def try_case(lab, case):
    """None, or what is wrong."""
    command, fault, *numbers = case
    try:
        FAULTS[fault].try_case(lab, command, *numbers)
    except Wrong as wrong:
        return str(wrong)
    return None


class Row:
    """Of the table."""

    def __init__(self):
        self.tried = self.failed = 0


class Tried:
    """The cases of a full campaign that went well, in a file. Numbers of cases belong to a program,
    and results to a campaign: with another one it begins anew."""

    def __init__(self, path, lab):
        digest = hashlib.sha256()
        own = sorted(glob.glob(os.path.join(ROOT, "tests/chaos/*.*")))
        for part in (lab.weft, lab.shim, *own):
            with open(part, "rb") as file:
                digest.update(file.read())
        first = "program %s\n" % digest.hexdigest()
        try:
            with open(path) as file:
                known = file.readline() == first
                self.names = set(file.read().split()) if known else set()
        except FileNotFoundError:
            known, self.names = False, set()
        self.file = open(path, "a" if known else "w")
        if not known:
            self.file.write(first)

    def add(self, name):
        self.file.write(name + "\n")
        self.file.flush()


class Clock:
    """When the campaign ends: after some seconds, or with Ctrl-C. Shows progress every second on a
    terminal, else every minute where the campaign has a total."""

    def __init__(self, seconds, total=0):
        self.end, self.told, self.total = time.monotonic() + seconds, 0, total
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(self, "end", 0))

    def over(self):
        return time.monotonic() >= self.end

    def tell(self, rows):
        now, shown = time.monotonic(), sys.stderr.isatty()
        if now - self.told < (1 if shown else 60) or not (shown or self.total):
            return
        tried, failed = (sum(getattr(r, k) for r in rows) for k in ("tried", "failed"))
        of = " of %d" % self.total if self.total else ""
        left = ", %.0f s left" % max(0, self.end - now) if self.end < math.inf else ""
        line = "%d%s cases, %d failed%s" % (tried, of, failed, left)
        print("\r" + line + " " if shown else line, end="" if shown else "\n", file=sys.stderr)
        self.told = now


def campaign(lab, faults, commands, clock, seed, jobs, each, before):
    """Faults take turns until the time is over or nothing is left. before: Tried, or None."""
    rows = {fault: Row() for fault in faults}
    lists = {fault: all_cases(lab, fault, commands, seed) for fault in faults}
    turns, running = itertools.cycle(faults), {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while lists or running:
            while lists and len(running) < jobs and not clock.over():
                fault = next(turns)
                full = each and rows[fault].tried >= each
                case = next(lists[fault], None) if fault in lists and not full else None
                if case is None:
                    lists.pop(fault, None)
                    continue
                rows[fault].tried += 1
                if before is None or name_of(case) not in before.names:
                    running[pool.submit(try_case, lab, case)] = case
            if clock.over():
                lists = {}
            clock.tell(rows.values())
            done, _ = concurrent.futures.wait(running, 1, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                case, wrong = running.pop(future), future.result()
                if wrong is None and before is not None:
                    before.add(name_of(case))
                if wrong is not None:
                    rows[case[1]].failed += 1
                    again = "tests/chaos/chaos.py --repeat " + name_of(case)
                    print(
                        "FAILED %s\n       %s\n       again: %s" % (name_of(case), wrong, again),
                        flush=True,
                    )
    return rows


def fuzz(build, seconds, seed):
    """The fuzz targets, one after another."""
    row, count = Row(), len(glob.glob(os.path.join(ROOT, "tests/fuzz/fuzz_*.c")))
    env = dict(os.environ, BUILD=build, EACH=str(max(1, int(seconds / count))), FUZZ_SEED=str(seed))
    run = subprocess.run(["tests/fuzz/run.sh"], cwd=ROOT, env=env, capture_output=True, text=True)
    row.tried = sum(map(int, re.findall(r"^ok +\S+ +(\d+) runs", run.stdout, re.M)))
    row.failed = len(re.findall(r"^FAILED", run.stdout, re.M))
    if run.returncode != 0:
        print(run.stdout + run.stderr, end="")
        row.failed = max(1, row.failed)
    return row


def count(lab, fault, command, seed):
    """None: the command has not been looked at."""
    return len(listed(lab, fault, command, seed)) if FAULTS[fault].knows(lab, command) else None


def print_table(lab, rows, commands, seed, seconds):
    print("\n%-10s %9s %9s %9s   %s" % ("fault", "tried", "of", "failed", "what"))
    for fault, row in rows.items():
        kind = FAULTS.get(fault)
        # A short campaign has not met all commands, and the others are not run for a count.
        counts = [count(lab, fault, command, seed) for command in commands] if kind else []
        of = sum(filter(None, counts))
        of = ("> " if None in counts else "") + str(of) if of else "any"
        print(
            "%-10s %9d %9s %9d   %s" % (fault, row.tried, of, row.failed, (kind or fuzz).__doc__)
        )
    failed = sum(row.failed for row in rows.values())
    name = "full" if seed is None else "seed %d" % seed
    told = "%d failed" % failed if failed else "nothing failed"
    print("\n%s, %d commands, %.0f s: %s" % (name, len(commands), seconds, told))


def can_mount(folder):
    probe = os.path.join(folder, "probe")
    os.mkdir(probe)
    words = ["mount", "-t", "tmpfs", "-o", "size=8192", "none", probe]
    if os.geteuid() == 0 and subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0:
        subprocess.run(["umount", probe], check=True)
        return True
    return False


def main():
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("--build", default=os.environ.get("BUILD", os.path.join(ROOT, "build")))
    parse.add_argument("--seconds", type=float, help="[default: 300; with --full no end]")
    parse.add_argument("--seed", type=int, default=1, help="not with --full")
    parse.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time")
    parse.add_argument("--each", type=int, default=0, help="cases of a fault at most")
    parse.add_argument("--sanitized", metavar="WEFT", help="the program under sanitizers")
    parse.add_argument(
        "--fuzz", metavar="BUILD", help="also its fuzz targets, for a fifth of the time"
    )
    parse.add_argument("--faults", default=",".join(FAULTS))
    parse.add_argument("--commands", default=",".join(COMMANDS))
    parse.add_argument("--full", metavar="FILE", help="all that can be counted; FILE: what is done")
    parse.add_argument("--repeat", metavar="CASE")
    parse.add_argument("--list", action="store_true")
    options = parse.parse_args()
    faults, commands = options.faults.split(","), options.commands.split(",")
    seed = None if options.full else options.seed
    for name in faults + commands:
        if name not in FAULTS and name not in COMMANDS:
            parse.error("no fault or command is called %s" % name)
    folder = tempfile.mkdtemp(prefix="chaos-")
    try:
        lab = Lab(options.build, folder, keep=options.repeat is not None)
        lab.mounts = can_mount(folder)
        lab.sanitized = options.sanitized and os.path.abspath(options.sanitized)
        if not lab.can_fetch():
            commands = [command for command in commands if not fetches(command)]
        if options.list:
            for command in commands:
                counts = ((f, len(listed(lab, f, command, seed))) for f in faults)
                print("%-16s" % command, *("%s:%s" % (f, count or "any") for f, count in counts))
            return 0
        if options.repeat:
            command, fault, *numbers = options.repeat.split(":")
            wrong = try_case(lab, (command, fault, *map(int, numbers)))
            print(wrong or "all is well", "in " + folder)
            return 1 if wrong else 0
        begun, total, before = time.monotonic(), 0, None
        if options.full:
            sizes = {f: [len(listed(lab, f, c, seed)) for c in commands] for f in faults}
            faults = [fault for fault in faults if sum(sizes[fault]) > 0]
            total, before = sum(sum(sizes[f]) for f in faults), Tried(options.full, lab)
        seconds = options.seconds or (math.inf if options.full else 300)
        share = seconds / 5 if options.fuzz else 0
        clock = Clock(seconds - share, total)
        rows = campaign(
            lab, faults, commands, clock, seed, options.jobs, options.each, before
        )
        if options.fuzz:
            rows["fuzz"] = fuzz(options.fuzz, share, seed)
        print_table(lab, rows, commands, seed, time.monotonic() - begun)
        return 1 if any(row.failed for row in rows.values()) else 0
    finally:
        if not options.repeat:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
