#!/usr/bin/env python3
"""Prints the Python interface as one Markdown page, from the sources in the folder named on the
command line (python/weft): every public name with its signature and docstring. Nothing is imported.
"""

import ast
import pathlib
import sys


def public_names(folder):
    """(module, name) of what weft/__init__.py hands on, in its order: modules have no name."""
    found = []
    for node in ast.walk(ast.parse((folder / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                found.append((node.module or alias.name, alias.name if node.module else None))
    return found


def signature(node):
    text = f"{node.name}({ast.unparse(node.args)})"
    return text + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def docstring(node):
    """Markdown of a docstring: examples and indented lines become code."""
    out, code = [], False
    for line in (ast.get_docstring(node) or "").split("\n"):
        now = line.startswith((">>>", "...", "    ")) or (code and line.strip() != "")
        if now != code:
            out.append("```python" if now else "```")
            code = now
        out.append(line)
    return "\n".join(out + ["```"] if code else out)


def show(node, level, owner=""):
    marks = "#" * level
    if isinstance(node, ast.ClassDef):
        print(f"{marks} {node.name}\n\n{docstring(node)}\n")
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                show(part, level + 1, node.name + ".")
    else:
        print(
            f"{marks} "
            f"{owner}{node.name}\n\n```python\n{signature(node)}\n```\n\n{docstring(node)}\n"
        )


def main():
    folder = pathlib.Path(sys.argv[1])
    print(
        "# The Python interface\n\nMade from the docstrings in `python/weft/`. [Python](python.md) "
        "is the guide.\n"
    )
    for module, name in public_names(folder):
        tree = ast.parse((folder / f"{module}.py").read_text())
        defined = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))
                   and not node.name.startswith("_")]
        if name is None:
            print(f"## weft.{module}\n\n{docstring(tree)}\n")
            for node in defined:
                show(node, 3)
        else:
            for node in defined:
                if node.name == name:
                    show(node, 2)


main()
