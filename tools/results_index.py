#!/usr/bin/env python3
"""Prints the list of results pages, newest first, with the date and the heading of each."""
import re
import sys

print("# Results\n\nEvery figure that weft claims comes from one of these pages: recipe, command, "
      "machine, commit, seeds, duration.\n")
for path in sorted(sys.argv[1:], reverse=True):
    lines = open(path).read().split("\n")
    title = next(line[2:] for line in lines if line.startswith("# "))
    # The date stands before it.
    title = re.sub(r"^\d{4}-\d\d-\d\d: | \(\d{4}-\d\d-\d\d\)$", "", title)
    name = path.split("/")[-1]
    print(f"- {name[:10]} [{title[0].upper() + title[1:]}](results/{name})")
