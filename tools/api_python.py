#!/usr/bin/env python3
"""Prints the Python interface as one Markdown page, from the sources in the folder named on the
command line (python/weft): every public name with its signature and docstring. Nothing is imported.
"""

import ast
import contextlib
import io
import pathlib
import re
import sys
import textwrap

MADE_BY_CALLS = {"Data", "Evaluation", "Flow", "Generator"}  # and not by their constructors


def public_names(folder):
    """(module, name) of what weft/__init__.py hands on, in its order: modules have no name."""
    found = []
    for branch in ast.parse((folder / "__init__.py").read_text()).body:
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING":
            for node in branch.body:
                for alias in node.names if isinstance(node, ast.ImportFrom) else []:
                    found.append((node.module or alias.name, alias.name if node.module else None))
    return found


def decorated(node, word):
    """Whether a decorator is, or is called, `word`."""
    names = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(ast.unparse(name).split(".")[-1] == word for name in names)


def argument(node, default=None):
    text = node.arg + (f": {ast.unparse(node.annotation)}" if node.annotation else "")
    return text + (f" = {ast.unparse(default)}" if default else "")


def arguments(node):
    """One text an argument, `self` and `cls` too."""
    by_place, given = node.args.args, node.args.defaults
    given = [None] * (len(by_place) - len(given)) + given
    found = [argument(a, d) for a, d in zip(by_place, given)]
    found += ["*" + argument(node.args.vararg)] if node.args.vararg else []
    found += ["*"] if node.args.kwonlyargs and not node.args.vararg else []
    found += [argument(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults)]
    return found + (["**" + argument(node.args.kwarg)] if node.args.kwarg else [])


def signature(node, owner=None):
    """As it is called: without self; a constructor by the name of its class."""
    made = node.name == "__init__"
    name = owner if made else node.name
    result = f" -> {ast.unparse(node.returns)}" if node.returns and not made else ""
    if decorated(node, "property") or decorated(node, "cached_property"):
        return name + result.replace(" -> ", ": ")
    texts = arguments(node)[0 if owner is None else 1 :]
    line = f"{name}({', '.join(texts)}){result}"
    if len(line) <= 90:
        return line
    return f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){result}"


def docstring(node):
    """Markdown of a docstring: examples become code, and lists of arguments stay in columns."""
    out = []
    for part in re.split(r"\n\n+", ast.get_docstring(node) or ""):
        if part.startswith((">>>", "    ")):
            part = f"```python\n{textwrap.dedent(part)}\n```"
        elif re.search(r"^[\w, .]+  +\S", part, re.M):
            part = f"```text\n{part}\n```"
        out.append(part)
    return "\n\n".join(out)


def members(node, classes):
    """Methods and attributes of a class, those of its bases in the package with them."""
    own = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    known = {part.name for part in own}
    for base in node.bases:
        if ast.unparse(base) in classes:
            inherited = members(classes[ast.unparse(base)], classes)
            own += [part for part in inherited if part.name not in known]
    return own


def fields(node):
    """What a dataclass is made of."""
    lines = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    return "\n\n```python\n" + "\n".join(lines) + "\n```" if lines else ""


def show_class(node, level, classes):
    parts = fields(node) if decorated(node, "dataclass") else ""
    print(f"{'#' * level} {node.name}\n\n{docstring(node)}{parts}\n")
    for part in members(node, classes):
        constructor = part.name == "__init__" and node.name not in MADE_BY_CALLS
        if constructor or not part.name.startswith("_"):
            show_function(part, level + 1, node.name)


def show_function(node, level, owner=None):
    name = node.name if owner is None else f"{owner}.{node.name}"
    title = owner if node.name == "__init__" else name
    heading = "" if node.name == "__init__" else f"{'#' * level} {title}\n\n"
    said = docstring(node)
    print(f"{heading}```python\n{signature(node, owner)}\n```\n" + (f"\n{said}\n" if said else ""))


def show_all(folder, trees, classes):
    for module, name in public_names(folder):
        tree, level = trees[module], 2
        if name is None:
            print(f"## weft.{module}\n\n{docstring(tree)}\n")
            level = 3
        for node in tree.body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
                continue
            if name in (None, node.name) and isinstance(node, ast.ClassDef):
                show_class(node, level, classes)
            elif name in (None, node.name):
                show_function(node, level)


def main():
    folder = pathlib.Path(sys.argv[1])
    print(
        "# The Python interface\n\nMade from the docstrings in `python/weft/`. [Python](python.md) "
        "is the guide.\n"
    )
    trees = {path.stem: ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))}
    classes = {
        node.name: node
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    with contextlib.redirect_stdout(io.StringIO()) as page:
        show_all(folder, trees, classes)
    types = [
        f"{node.targets[0].id} = {ast.unparse(node.value)}"
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
        and re.search(rf"\b{node.targets[0].id}\b", page.getvalue())
    ]
    print("Types that have a name:\n\n```python\n" + "\n".join(types) + "\n```\n")
    print(page.getvalue(), end="")


main()
