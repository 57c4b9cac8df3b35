#!/usr/bin/env python3
"""Runs the code blocks of documents: every fence marked sh or python, in order, in a scratch folder.

    tests/doc_blocks.py README.md docs/tutorial.md

Blocks of one page share the folder and, in Python, their variables. A comment above a block,
<!-- before: CODE -->, runs first, for what readers have already; <!-- not run: REASON --> keeps a block
from running, and the reason is printed. Blocks without a mark are output or formulas. Fits get MINUTES
(0.2) in place of the minutes that the page gives them. BUILD names the build whose `weft` runs; PYTHON
the interpreter, with PyTorch. $ROOT is the repository."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"(?:<!-- (?:not run: (?P<reason>[^>]*?)|before:(?P<before>[^>]*?))\s*-->\n)?"
                   r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$", re.S | re.M)
MINUTES = re.compile(r"(--minutes |minutes=)[0-9.]+")


def run_page(page, environment, python):
    text = pathlib.Path(page).read_text()
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as programs:
        os.symlink(python, pathlib.Path(programs, "python3"))
        environment = dict(environment, PATH=f"{programs}:{environment['PATH']}")
        history = ""  # of Python: a block may use what earlier ones made
        for block in FENCE.finditer(text):
            line = text.count("\n", 0, block.start("code"))
            place = f"{page}:{line}"
            if block["reason"]:
                print(f"skip {place}: {block['reason']}")
                skipped += 1
                continue
            code = MINUTES.sub(rf"\g<1>{os.environ.get('MINUTES', '0.2')}", block["code"])
            if block["before"]:
                code = block["before"].strip() + "\n" + code
            if block["language"] == "sh":
                command = ["bash", "-euo", "pipefail", "-c", code]
            else:
                history += code
                command = [python, "-c", history]
            done = subprocess.run(command, cwd=folder, env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode == 0:
                passed += 1
                continue
            failed += 1
            print(f"not ok {place}: exit {done.returncode}\n{code}{done.stdout[-2000:]}")
            break  # what follows stands on this block
    return passed, failed, skipped


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    build = (root / os.environ.get("BUILD", "build")).resolve()
    environment = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}", ROOT=str(root),
                       PYTHONPATH=str(root / "python"), WEFT_LIBRARY=str(build / "libweft.so"))
    python = os.environ.get("PYTHON", "/usr/bin/python3")
    totals = [0, 0, 0]
    for page in sys.argv[1:]:
        counts = run_page(page, environment, python)
        totals = [a + b for a, b in zip(totals, counts)]
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    sys.exit(totals[1] > 0 or sum(totals) == 0)


main()
