#!/usr/bin/env python3
"""compile_commands.py FILE: from the commands that `make -Bn V=1` prints, the database that editors
read."""
import json, os, re, shlex, sys

entries = []
for line in sys.stdin.read().replace("\\\n", " ").splitlines():
    if not re.search(r"\.(c|cpp) .*-o |-o .*\.(c|cpp)", line):
        continue
    words = shlex.split(line, comments=True)
    sources = [word for word in words if re.fullmatch(r"(src|tests)/.*\.(c|cpp)", word)]
    if sources:
        output = words[words.index("-o") + 1]
        entries.append(
            {"directory": os.getcwd(), "file": sources[0], "arguments": words, "output": output}
        )
if not entries:
    sys.exit("compile_commands.py: no compiler's command in the input")
with open(sys.argv[1], "w") as file:
    json.dump(entries, file, indent=1)
