#!/usr/bin/env python3
"""Prints the page of recipes from the headers of the recipe files named on the command line: what
each is for, its command, time and score as measured."""
import re
import sys


def header(path):
    """The first sentence and the labelled lines of the comment that opens a recipe."""
    title, fields, label = "", {}, None
    for line in open(path):
        if not line.startswith("#"):
            break
        text = line[1:].rstrip()
        found = re.match(r"   (\w+) {2,}(.*)", text)
        if found:
            label = found.group(1)
            fields[label] = [found.group(2)]
        elif label and text.startswith("     "):
            fields[label].append(text.strip())
        elif text.strip() and not fields:
            title = (title + " " + text.strip()).strip()
    return title, {k: ("   " if k == "command" else " ").join(v) for k, v in fields.items()}


def escaped(text):
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


print(
    "# Recipes\n\nA recipe is a text file with everything a run depends on. `weft run NAME` runs "
    "an installed one; "
    "`--set section.key=value` changes a setting. Times and scores are those in the header of each "
    "file.\n"
)
for path in sys.argv[1:]:
    title, fields = header(path)
    name = path.split("recipes/")[-1][:-5]
    print(f"## {name}\n\n{title}\n\n| | |\n| --- | --- |")
    for label, text in fields.items():
        if label == "command":  # then remarks, set off by spaces
            command, *remarks = re.split(r" {3,}", text)
            print(f"| command | `{command}`{''.join('<br>' + escaped(r) for r in remarks)} |")
        else:
            print(f"| {label} | {escaped(text)} |")
    print()
