#!/usr/bin/env python3
"""Runs the code blocks of documents: every fence marked sh or python, in order, in a scratch
folder.

    tests/doc_blocks.py README.md docs/tutorial.md

Blocks of one page share the folder and, in Python, their variables. Fences marked json, conf (part
of a recipe) and manifest are read, those marked c compiled. Those marked text, those without a
language and indented blocks are output, drawings or formulas: of the last two, one that begins like
a command is a fault of the page. Comments steer, above a block:

    <!-- before: CODE -->                  CODE runs first: what readers have already
    <!-- not run: REASON -->               the block does not run
    <!-- not run, COMMAND: REASON -->      nor do its lines that begin with COMMAND

or anywhere on the page:

    <!-- files: SCRIPT -->                 SCRIPT fills the folder; it runs once for all pages
    <!-- files: SCRIPT; each line by itself -->  and each line of a block has those files anew,
                                                 without
                                           what it writes

What did not run is counted, and printed with its reason. Fits get MINUTES (0.03) in place of the
minutes that the page gives them, a demo gets a few updates, and thousands of networks are twenty.
BUILD names the build whose `weft` runs; PYTHON the interpreter, with PyTorch. $ROOT is the
repository."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

COMMENT = r"<!-- (?:not run|before)(?:(?!-->).)*?-->\n"
BLOCK = re.compile(
    rf"(?P<comments>(?:{COMMENT})*)^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.S | re.M
)
COMMAND = r"(?:weft|make|mpirun|srun|python3?|pip|git|docker|tests/\S+|import|#!/\S+)\s"
INDENTED = re.compile(rf"(?<=\n\n) {{4,}}(?:{COMMAND}|(?:static|#include|typedef) )")
FILES = re.compile(r"<!-- files: (?P<script>\S+?)(?P<alone>; each line by itself)? -->")
OUTPUT = re.compile(r"(?:-o|--out|--held-out) (\S+)")
ROOT = pathlib.Path(__file__).resolve().parent.parent
MINUTES = os.environ.get("MINUTES", "0.03")
SHORTER = [
    (re.compile(r"(--minutes |minutes=| -m )[0-9.]+"), rf"\g<1>{MINUTES}"),
    (re.compile(r"( -n )[0-9]{4,}"), r"\g<1>20"),
    (re.compile(r"(\(.*\bupdates=)[0-9]+"), r"\g<1>20"),
    (
        re.compile(r"^(weft fit (?!.*(?:--minutes| -m )).*?)( *#.*)?$", re.M),
        rf"\g<1> --minutes {MINUTES}",
    ),
    (
        re.compile(r"^weft demo(?P<rest>.*?)( *#.*)?$", re.M),
        r"weft demo\g<rest> --set zoo.count=60 --set train.updates=20 --set eval.subsets=2",
    ),
]


# Runs each line of its input, a JSON text of code, in the same variables; answers null or what was
# printed.
INTERPRETER = """
import contextlib, io, json, sys, traceback
answer, variables = sys.stdout, {}
for line in sys.stdin:
    said, failed = io.StringIO(), False
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(json.loads(line), variables)
        except BaseException:
            failed = True
            traceback.print_exc()
    print(json.dumps(said.getvalue() if failed else None), file=answer, flush=True)
"""


def shorter(code):
    for pattern, by in SHORTER:
        code = pattern.sub(by, code)
    return code


def steering(comments):
    """What the comments above a block say: code to run before it, why not to run it,
    {line: reason}."""
    before, whole, lines = "", None, {}
    for text in re.findall(r"<!-- (.*?)\s*-->", comments, re.S):
        kind, said = re.match(r"(before|not run(?:, .*?)?):\s+(.*)", text, re.S).groups()
        if kind == "before":
            before += said + "\n"
        elif kind == "not run":
            whole = said
        else:
            lines[kind[len("not run, "):]] = said
    return before, whole, lines


class Page:
    def __init__(self, path, environment, python, folders):
        self.path, self.environment, self.python, self.folders = path, environment, python, folders
        self.text = pathlib.Path(path).read_text()
        self.interpreter = None
        self.passed = self.failed = self.skipped = 0

    def line_of(self, position):
        return self.text.count("\n", 0, position) + 1

    def fault(self, line, what, output=""):
        self.failed += 1
        print(f"not ok {self.path}:{line}: {what}\n{output[-2000:]}")

    def skip(self, line, what, reason):
        self.skipped += 1
        print(f"skip {self.path}:{line}: {what}: {reason}")

    def run(self, line, command, shown, folder):
        done = subprocess.run(
            command, cwd=folder, env=dict(self.environment, HOME=str(folder)), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )
        if done.returncode == 0:
            self.passed += 1
            return True
        self.fault(line, f"exit {done.returncode}", shown + done.stdout)
        return False

    def shell(self, line, code, folder):
        return self.run(line, ["bash", "-euo", "pipefail", "-c", code], code, folder)

    def python_code(self, line, code, folder):
        if self.interpreter is None:
            self.interpreter = subprocess.Popen(
                [self.python, "-c", INTERPRETER], cwd=folder, text=True, env=self.environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        print(json.dumps(code), file=self.interpreter.stdin, flush=True)
        said = json.loads(self.interpreter.stdout.readline())
        if said is None:
            self.passed += 1
            return True
        self.fault(line, "the code failed", said)
        return False

    def block(self, block, folder, alone):
        """Runs a block; False: what follows it on the page cannot run."""
        line, language, code = self.line_of(block.start("code")), block["language"], block["code"]
        before, whole, left_out = steering(block["comments"])
        if language == "":
            if re.match(COMMAND, code):
                self.fault(line, "a block of commands that no test runs: mark it sh")
            return True
        if language == "text":
            return True
        if whole:
            self.skip(line, language, whole)
            return True
        if language == "json":
            try:
                json.loads(code)
                self.passed += 1
            except ValueError as error:
                self.fault(line, str(error))
            return True
        if language == "python":
            return self.python_code(line, before + shorter(code), folder)
        # its data need not be there: what is wrong in the text has a line number
        if language == "conf":
            (folder / "block.conf").write_text(code)
            return self.shell(line, 'said=$(weft data info block.conf 2>&1 || true)\n'
                                    '! grep "block.conf:[0-9]" <<<"$said"', folder)
        if language == "manifest":
            (folder / "block.manifest").write_text(code)
            return self.shell(
                line, "weft train tasks.conf --manifest block.manifest -o block", folder
            )
        if language == "c":
            (folder / "block.c").write_text("#include <weft/generator.h>\n" + code)
            return self.shell(
                line,
                'gcc -std=gnu11 -Wall -Wno-unused -Werror -fsyntax-only -I"$ROOT"/include block.c',
                folder,
            )
        if language != "sh":
            self.fault(line, f"a block of {language}, which nothing checks")
            return True
        kept = []
        for text in code.splitlines():
            reason = next((left_out[c] for c in left_out if text.startswith(c)), None)
            if reason:
                self.skip(line, text.split("  ")[0], reason)
            else:
                kept.append(text)
        parts = kept if alone else ["\n".join(kept)]
        for part in parts:
            if not part.strip():
                continue
            part = shorter(part)
            if alone:
                with tempfile.TemporaryDirectory() as own:
                    shutil.copytree(folder, own, dirs_exist_ok=True)
                    for output in OUTPUT.findall(part):
                        for old in pathlib.Path(own).glob(output.rstrip("/") + "*"):
                            shutil.rmtree(old) if old.is_dir() else old.unlink()
                    self.shell(line, part, pathlib.Path(own))
            elif not self.shell(line, before + part, folder):
                return False
        return True

    def check(self):
        started = time.monotonic()
        files = FILES.search(self.text)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            environment = self.environment
            if files:
                shutil.copytree(self.folders(files["script"]), folder, dirs_exist_ok=True)
                self.environment = dict(environment, WEFT_RECIPES=str(folder / "recipes"))
            for block in BLOCK.finditer(self.text):
                if not self.block(block, folder, bool(files and files["alone"])):
                    break
            if self.interpreter is not None:
                self.interpreter.stdin.close()
                self.interpreter.wait()
                self.interpreter.stdout.close()
        outside = BLOCK.sub(lambda b: "\n" * b[0].count("\n"), self.text)
        for block in INDENTED.finditer(outside):
            self.fault(outside.count("\n", 0, block.start()) + 1,
                       "an indented block of commands or C, which no test runs: make it a fence")
        if self.passed + self.failed + self.skipped > 0:
            print(
                f"{self.path}: {self.passed} passed, {self.failed} failed, {self.skipped} not run, "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )


def main():
    build = (ROOT / os.environ.get("BUILD", "build")).resolve()
    python = os.environ.get("PYTHON", "/usr/bin/python3")
    pages = []
    with tempfile.TemporaryDirectory() as scratch:
        programs = pathlib.Path(scratch, "programs")
        programs.mkdir()
        os.symlink(python, programs / "python3")
        mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        environment = dict(
            os.environ, **mpi, PATH=f"{programs}:{build}:{os.environ['PATH']}", ROOT=str(ROOT),
            PYTHONPATH=f"{ROOT}/python:{ROOT}/tests", WEFT_LIBRARY=str(build / "libweft.so"),
        )

        def folder_of(script, made={}):
            if script not in made:
                made[script] = pathlib.Path(scratch, f"files{len(made)}")
                made[script].mkdir()
                subprocess.run([ROOT / script], cwd=made[script], env=environment, check=True)
            return made[script]

        for path in sys.argv[1:]:
            pages.append(Page(path, environment, python, folder_of))
            pages[-1].check()
    totals = [
        sum(getattr(page, name) for page in pages) for name in ("passed", "failed", "skipped")
    ]
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} not run")
    sys.exit(totals[1] > 0 or sum(totals) == 0)


main()
