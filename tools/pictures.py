#!/usr/bin/env python3
"""Draws the pictures of the documentation from the report of a run, with chromium.

    make demo && tools/pictures.py runs/demo docs/img regions points table training weights
    tools/pictures.py RUN docs/img page      the run of docs/tutorial.md

Each picture is one section of the page, or its top, so that it shows what a reader's own page
shows. Without names all are drawn."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# name, section of the page, width, height in pixels
PICTURES = [("regions", "decisions", 1000, 400), ("points", "points", 1080, 860),
            ("table", "table", 1080, 960), ("training", "training", 1080, 470),
            ("weights", "weights", 1080, 560), ("page", None, 1100, 1700)]


def page_of(report, section):
    if section is None:
        return report
    body = re.search(rf'<section id="{section}">.*?</section>', report, re.S)
    if body is None:
        sys.exit(f"pictures.py: the page has no section {section}")
    style = re.search(r"<style>.*?</style>", report, re.S).group(0)
    return (f"<!doctype html><meta charset=utf-8>{style}<style>section{{margin:0}}"
            f"main{{padding:16px 20px;max-width:none}}</style><main>{body.group(0)}</main>")


def shoot(browser, html, width, height, out):
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder, "page.html")
        page.write_text(html)
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--user-data-dir={folder}/profile", f"--window-size={width},{height}",
                        f"--screenshot={out}", f"file://{page}"], check=True, capture_output=True)


def main():
    names = sys.argv[3:] or [picture[0] for picture in PICTURES]
    if len(sys.argv) < 3 or not set(names) <= {picture[0] for picture in PICTURES}:
        sys.exit(__doc__)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("pictures.py: chromium is not installed")
    report = pathlib.Path(sys.argv[1], "report.html").read_text()
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, section, width, height in PICTURES:
        if name not in names:
            continue
        shoot(browser, page_of(report, section), width, height, folder.resolve() / f"{name}.png")
        print(folder / f"{name}.png")


main()
