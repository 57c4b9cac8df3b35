#!/usr/bin/env python3
"""Checks that the public headers say of every function who owns what, what NULL means and which
statuses it returns. Prints what is missing, one function a line, and fails.

    tools/header_comments.py [HEADER...]        those of include/weft without arguments

What counts as said of a function: the comment before it (before the first of several declarations
without a blank line between them), the one behind it, and the one with dashes that opens its
section. weft/weft.h has the rules that hold where a comment says nothing; every header refers to
it. Beyond these rules must be said:
  every function        something, by a comment of its own or of its group
  wf_status             "Returns" and the statuses, or the function that returns the same
  T **out, char **out   who frees it
  a pointer as result   whom it belongs to or who frees it, and when it is NULL, if ever
  *_free                that it accepts NULL"""

import glob
import os
import re
import sys

RULES = "weft/weft.h"
OWNER = r"caller's|_free\b|\bfree\(|belong|constant|static|borrowed|kept|keeps|table|itself"
FUNCTION = re.compile(
    r"(?:WF_API|static inline(?: WF_HD)?)\s+([^;()={}]*?\**)\s*\b(wf_\w+)"
    r"\(((?:[^()]|\([^()]*\))*)\)"
)


def words(comment):
    """A comment as one line."""
    return " ".join(re.sub(r"^\s*\*+/?|/\*+|\*/", " ", comment, flags=re.M).split())


def functions(text):
    """(name, result, arguments, what is said of it) of every function of a header."""
    section = group = ""
    end = 0
    tokens = re.compile(r"/\*.*?\*/|\n[ \t]*\n|" + FUNCTION.pattern, re.S)
    found = []
    for token in tokens.finditer(text):
        part = token.group()
        if part.startswith("/*"):
            line_start = text.rfind("\n", 0, token.start()) + 1
            behind = text[line_start : token.start()].strip() != ""
            if behind:
                if found and ";" in text[end : token.start()]:
                    found[-1][3] += " " + words(part)
            elif "---" in part.split("\n")[0]:
                section, group = words(part), ""
            else:
                group = words(part)
        elif part.startswith("\n"):
            group = ""
        else:
            result, name, arguments = token.group(1, 2, 3)
            own = group or section
            found.append([name, result.strip(), " ".join(arguments.split()), own + " " + section])
            end = token.end()
    return found


def missing(name, result, arguments, said):
    """What must be said and is not."""
    if not said.strip():
        yield "a comment"
        return
    if result == "wf_status":
        if not re.search(r"[Rr]eturns?\b.*(WF_(OK|ERR)|as wf_|what wf_|as above)", said):
            yield "its statuses"
    if "**" in arguments and not re.search(OWNER, said, re.I):
        yield "who frees what it hands over"
    if result.endswith("*"):
        if not re.search(OWNER, said, re.I):
            yield "whom the result belongs to"
        if "NULL" not in said:
            yield "when the result is NULL"
    if name.endswith("_free") and not re.search(r"accepts? NULL|NULL is fine", said, re.I):
        yield "that it accepts NULL"


def main():
    here = os.path.join(os.path.dirname(__file__), "..", "include", "weft", "*.h")
    count = faults = 0
    for path in sys.argv[1:] or sorted(glob.glob(here)):
        text = open(path).read()
        label = "weft/" + os.path.basename(path)
        found = functions(text)
        if found and RULES not in text.split("*/")[0]:
            print(f"{label}: its first comment does not refer to {RULES}")
            faults += 1
        for name, *rest in found:
            count += 1
            for what in missing(name, *rest):
                print(f"{label}: {name}: {what}")
                faults += 1
    print(f"{count} public functions, {faults} things not said")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
