#!/usr/bin/env python3
"""Prints the C interface as one Markdown page, from the public headers named on the command line.

A header's first comment opens its section. After that every group of lines between blank lines is
one entry: its leading comment is the text, the declarations are the code."""
import re
import sys

# Headers that are not named here come last.
ORDER = [
    "weft", "base", "comm", "settings", "recipe", "text", "file", "rng", "data", "graph", "zoo",
    "import", "align", "field", "flow", "generator", "plan", "eval", "report", "run", "bench",
]


def comment_text(comment):
    """The words of a block comment, without its stars."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip()[2:-2].split("\n")]
    lines[0] = lines[0].strip()
    return [re.sub(r"^-{3,}\s*|\s*-{3,}$", "", line) for line in lines]


def prose(lines):
    """Markdown of comment lines: indented lines are code or tables and stay as they are."""
    out, fenced = [], False
    for line in lines:
        indented = line.startswith("  ") or (fenced and not line)
        if indented != fenced:
            out.append("```c" if indented else "```\n")
            fenced = indented
        line = line if fenced else line.replace("<", "&lt;").replace("*", "\\*")
        # "weights  (n, n_params) ..." describes one parameter: a line of its own.
        out.append(re.sub(r"^(\w+(?:, \w+)*)  +", r"\n`\1` ", line) if not fenced else line)
    if fenced:
        out.append("```")
    return "\n".join(out).replace("\n\n```\n", "\n```\n")


def entries(body):
    """(comment lines, code) of every group between blank lines."""
    for group in re.split(r"\n\s*\n", body):
        group = group.strip("\n")
        lines = [line for line in group.split("\n") if line.strip()]
        if all(line.startswith("#") for line in lines):
            continue  # switches of the preprocessor, which say nothing to a caller
        found = re.match(r"\s*(/\*.*?\*/)\s*", group, re.S)
        if found:
            yield comment_text(found.group(1)), group[found.end():]
        else:
            yield [], group


def heading(code):
    names = re.findall(r"\b(wf_[a-z0-9_]+)\s*\(", code)
    if not names:
        names = re.findall(r"\}\s*(wf_[a-z0-9_]+)\s*;", code) or \
                re.findall(r"typedef struct \w+ (wf_\w+);", code)
    return ", ".join(dict.fromkeys(names[:4]))


def page(path):
    text = open(path).read()
    name = path.split("/")[-1]
    first = re.match(r"\s*(/\*.*?\*/)", text, re.S)
    body = text[first.end():]
    body = re.sub(
        r"(?m)^#(if|else|elif|endif|undef|include \"weft/\w+\.h|define WEFT_).*\n", "", body
    )
    body = re.sub(r"(?m)^WF_(BEGIN|END)_C\s*$", "", body)
    intro = comment_text(first.group(1))
    intro[0] = re.sub(r"^\s*weft/\w+\.h:\s*", "", intro[0])
    intro[0] = intro[0][:1].upper() + intro[0][1:]
    print(f"## weft/{name}\n\n{prose(intro)}\n")
    for comment, code in entries(body):
        if code.strip() and heading(code):
            print(f"### {heading(code)}\n")
        if comment:
            print(prose(comment) + "\n")
        if code.strip():
            print(f"```c\n{code.strip()}\n```\n")


def main():
    headers = {path.split("/")[-1][:-2]: path for path in sys.argv[1:]}
    print(
        "# The C interface\n\nMade from `include/weft/`; `#include <weft/weft.h>` brings all of "
        "it, "
        "`pkg-config --cflags --libs weft` the flags.\n"
    )
    for name in [n for n in ORDER if n in headers] + sorted(set(headers) - set(ORDER)):
        page(headers[name])


main()
