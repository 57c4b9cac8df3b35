#!/usr/bin/env python3
"""Turns a preprocessed .cu file (stdin) into C++ for the emulator (stdout).

    kernel<T><<<grid, block, bytes, stream>>>(...)   emulated::launch("kernel<T>", grid, block,
                                                     bytes, stream, kernel<T>)(...)
    asm("op.type %0, [%1];" : "=r"(x) : "r"(p));     { const auto in_1 = p; ptx::op_type(x, in_1); }
    extern __shared__ T name[];                      T *const name = the block's dynamic shared
                                                     memory
Lines keep their numbers.
"""
import re
import sys


def closing(text, at):
    """Where the bracket that opens at `at` closes; strings are skipped."""
    depth = 0
    while True:
        if text[at] == '"':
            at = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, at).end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0:
            return at
        at += 1


def split(text, mark):
    """By a character outside of brackets and strings."""
    parts, start, at = [], 0, 0
    while at < len(text):
        if text[at] in "([{":
            at = closing(text, at)
        elif text[at] == '"':
            at = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, at).end() - 1
        elif text[at] == mark:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return parts + [text[start:]]


def operand(token, names):
    if token.startswith("%%"):
        return "ptx::" + token[2:].replace(".", "_") + "()"
    if token.startswith("["):
        base, _, offset = token[1:-1].partition("+")
        return "ptx::at(%s, %s)" % (operand(base.strip(), names), offset.strip() or "0")
    if token == "_":
        return "ptx::sink()"
    return names[int(token[1:])] if token.startswith("%") else token


REGISTERS = {".b16": "uint16_t", ".b32": "uint32_t", ".b64": "uint64_t", ".pred": "bool"}


def instruction(line, names):
    op, _, rest = line.partition(" ")
    if op == ".reg":
        kind, _, registers = rest.partition(" ")
        return "%s %s;" % (REGISTERS[kind], registers)
    tokens = re.findall(r"%%[\w.]+|%\d+|\[[^\]]*\]|\w+", rest)
    name = re.sub(r"\W+", "_", op)
    return "ptx::%s(%s);" % (name, ", ".join(operand(t, names) for t in tokens))


def statement(inside):
    """Of what stands between the parentheses of asm."""
    sections = split(inside, ":") + ["", ""]
    text = (
        "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0]))
        .replace("\\n", " ")
        .replace("\\t", " ")
        .strip()
    )
    if text.startswith("{"):
        text = text[1:-1]
    names, taken = [], ""
    for which, section in enumerate(sections[1:3]):
        for item in split(section, ","):
            if item.strip() == "":
                continue
            value = item[item.index("("):].strip()
            if which == 0:
                names.append(value)
            else:
                taken += "const auto in_%d = %s; " % (len(names), value)
                names.append("in_%d" % len(names))
    lines = [instruction(line.strip(), names) for line in text.split(";") if line.strip()]
    return "{ %s%s }" % (taken, " ".join(lines)) if lines else "{ }"


def translate_asm(text):
    out, at = "", 0
    for match in re.compile(r"\basm\b(\s+volatile)?\s*(?=\()").finditer(text):
        end = closing(text, match.end())
        stop = text.index(";", end) + 1
        out += text[at:match.start()] + statement(text[match.end() + 1:end])
        out += "\n" * text.count("\n", match.start(), stop)
        at = stop
    return out + text[at:]


def translate_launches(text):
    out, at = "", 0
    for match in re.finditer("<<<", text):
        start = match.start()
        while text[start - 1].isspace():
            start -= 1
        if text[start - 1] == ">":
            depth = 1
            start -= 1
            while depth > 0:
                start -= 1
                depth += (text[start] == ">") - (text[start] == "<")
        while re.match(r"\w", text[start - 1]):
            start -= 1
        kernel = re.sub(r"\s+", " ", text[start:match.start()].strip())
        stop = text.index(">>>", match.end())
        out += text[at:start] + 'emulated::launch("%s", %s, %s)' % (
            kernel,
            text[match.end() : stop],
            kernel,
        )
        out += "\n" * text.count("\n", start, match.end())
        at = stop + 3
    return out + text[at:]


source = sys.stdin.read()
source = re.sub(r"extern static (?:__attribute__\(\(aligned\(\d+\)\)\) )?([\w ]+?) (\w+)\[\];",
                r"\1 *const \2 = (\1 *)emulated::dynamic_shared;", source)
sys.stdout.write(translate_launches(translate_asm(source)))
