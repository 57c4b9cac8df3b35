#!/usr/bin/env python3
"""check_claims.py [FOLDER]: are the figures of the README, of docs/ and of recipes/ those that
docs/results/ shows?

docs/results/values.json lists results: a text that marks the README's lines about it, the page that
shows it, and its values. A line of the README with a score (0.972) or a gap in points (-1.8) must
be marked by a result, in the line or in the first line of its table, and the figure must be one of
its values, rounded. Every value must stand in its page, or in the eval.json that is kept. Rows of
printed tables are compared as a whole with the kept eval.json of the demo.

In docs/*.md and at the head of recipes each score of a paragraph that speaks of JWS or names a page
of docs/results/ must be a value of values.json, or stand in a page that the paragraph names; a
table belongs to the paragraph above it. Lines of the paper's own figures and printed examples are
left out."""
import glob
import json
import os
import re
import sys

SCORE = re.compile(r"(?<![\d.])0\.\d{3}(?!\d)")
GAP = re.compile(r"(?<![\w.])-\d+\.\d(?!\d)")


def printed_row(row):
    """A row of the table that `weft demo` prints, as its columns."""

    def pair(name, digits, factor=1):
        mean, std = factor * row[name + "_mean"], factor * row[name + "_std"]
        return f"{mean:.{digits}f} ± {std:.{digits}f}"

    jws = "-" if row["jws"] is None else f"{row['jws']:.3f} ± {row['jws_std']:.3f}"
    scores = [pair("accuracy", 2, 100), pair("iou", 3), pair("wcs", 3), jws]
    return [row["name"], str(row["n"])] + scores + (["copies"] if row["copies"] else [])


def figures(line):
    """The scores and gaps of a line, each with its number of decimals."""
    return [(text, 3) for text in SCORE.findall(line)] + [(text, 1) for text in GAP.findall(line)]


def check_values(folder, results, faults):
    for result in results:
        if "eval" in result:
            continue
        page = open(os.path.join(folder, result["page"]), encoding="utf-8").read()
        for name, value in result["values"].items():
            if f"{value:.{3 if 0 <= value < 1 else 2}f}" not in page:  # a score, or a gap in points
                faults.append(f"values.json: {name}, {value}, is not in {result['page']}")


def values_of(result, rows):
    if "eval" not in result:
        return list(result["values"].values())
    keys = ("jws", "iou_mean", "wcs_mean")
    return [row[key] for row in rows.values() for key in keys if row[key] is not None]


def check_readme(root, results, rows, faults):
    fenced, heading = False, ""
    for number, line in enumerate(open(os.path.join(root, "README.md"), encoding="utf-8"), 1):
        place = f"README.md:{number}"
        if line.startswith("```"):
            fenced = not fenced
            continue
        columns = re.split(r"\s{2,}", line.strip())
        if fenced:
            row = rows.get(columns[0])
            if row is not None and columns[1:2] == [str(row["n"])] and columns != printed_row(row):
                faults.append(f"{place}: the demo's row is {'  '.join(printed_row(row))}")
            continue
        if not line.startswith("|"):
            heading = ""
        elif not heading:
            heading = line
        found = figures(line)
        if not found:
            continue
        marked = [r for r in results if r["line"] in line or r["line"] in heading]
        if not marked:
            faults.append(f"{place}: {found[0][0]} belongs to no result of values.json")
        values = [v for r in marked for v in values_of(r, rows)]
        for text, digits in found if marked else []:
            if not any(f"{v:.{digits}f}" == text for v in values):
                faults.append(f"{place}: {text} is no value of {marked[0]['line']!r}")


def paragraphs(path):
    """The paragraphs of a page or of a recipe's head as lists of (number, line), without printed
    examples."""
    recipe, fenced, found = path.endswith(".conf"), False, [[]]
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        if recipe and not line.startswith("#"):
            break
        if line.startswith("```"):
            fenced = not fenced
        elif line.strip() in ("", "#") and not fenced:
            found.append([])
        elif not fenced:
            found[-1].append((number, line))
    return [lines for lines in found if lines]


def check_page(root, path, known, faults):
    above = ""
    for lines in paragraphs(path):
        text = "".join(line for _, line in lines)
        named = re.findall(r"results/([\w.-]+\.md)", above + text if text.startswith("|") else text)
        above = text
        if "JWS" not in text and not named:
            continue
        shown = set(known)
        for page in named:
            content = open(os.path.join(root, "docs", "results", page), encoding="utf-8").read()
            shown.update(
                f"{float(score):.3f}"
                for score in re.findall(r"(?<![\d.])0\.\d{3,4}(?!\d)", content)
            )
        for number, line in lines:
            if "the paper's" in line:
                continue
            for score in SCORE.findall(line):
                if score not in shown:
                    place = f"{os.path.relpath(path, root)}:{number}"
                    faults.append(
                        f"{place}: {score} stands in no page of docs/results that its paragraph "
                        f"names"
                    )


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..")
    folder = os.path.join(root, "docs", "results")
    results = json.load(open(os.path.join(folder, "values.json"), encoding="utf-8"))
    rows = {}
    for result in results:
        if "eval" in result:
            kept = json.load(open(os.path.join(folder, result["eval"]), encoding="utf-8"))
            rows.update({row["name"]: row for row in kept["rows"]})
    faults = []
    check_values(folder, results, faults)
    check_readme(root, results, rows, faults)
    known = {f"{value:.3f}" for result in results for value in values_of(result, rows)}
    pages = glob.glob(os.path.join(root, "docs", "*.md")) + glob.glob(
        os.path.join(root, "recipes", "**", "*.conf"), recursive=True
    )
    for path in sorted(pages):
        if os.path.basename(path) != "commands.md":  # written by the program
            check_page(root, path, known, faults)
    for fault in faults:
        print(fault)
    if not faults:
        print(
            f"README.md: its figures are those of {len(results)} results; {len(pages)} pages and "
            f"recipes"
        )
    return 1 if faults else 0


sys.exit(main())
