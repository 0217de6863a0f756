#!/usr/bin/env python3
"""Mutation test of one unit, run by hand: prints the changes that no test detects.

Usage: mutate.py FILE.c [--tests REGEX] [--limit N]. Called by `./run mutate FILE`. Flips one operator or drops one
statement of FILE at a time, in a copy of the tree under build/mutate, builds the tests and runs them: those of
tests/unit/FOLDER, or those whose name REGEX matches. A mutant that every test passes survives and is printed.
Some survivors are no gap: the mutant may do the same as the original. Ctrl-C ends with the count so far."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time

COPY, BUILD, TEST_SECONDS = "build/mutate/tree", "build/mutate/build", 60
FLIPS = {
    "==": "!=", "!=": "==", "<=": "<", ">=": ">", "<": "<=", ">": ">=", "&&": "||", "||": "&&", "+=": "-=", "-=": "+=",
    "++": "--", "--": "++", "|=": "&=", "&=": "|=", "+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<",
    "&": "|", "|": "&", "!": "",
}
TOKEN = re.compile(r"->|<<=|>>=|&&|\|\||==|!=|<=|>=|\+\+|--|<<|>>|[-+*/%&|^]=|[-+*/%&|^!<>?:~]|[A-Za-z_]\w*|[\d.](?:[eE][-+]|[\w.])*|\S")
TYPES = re.compile(r"(struct|enum|union|const|static|void|bool|char|int|float|double|unsigned|signed|long|short|size_t|json_t|"
                   r"FILE|\w+_t)\b")
STATEMENT = re.compile(r"(?:(?<=[;{})])|(?<=\belse))\s*(?=([A-Za-z_*(][^;{}]*;))")


def blank(text):
    """The text with comments, strings, preprocessor lines and assertions blanked out: offsets stay."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\\\n]|\\.)*|\bassert\([^;]*;'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S | re.M)


def bodies(code):
    """(start, end) of each function's body: this style has its braces in the first column."""
    return [(m.start(), m.end()) for m in re.finditer(r"^\{.*?^\}", code, re.S | re.M)]


def operators(code, start, end):
    before = ""
    for m in TOKEN.finditer(code, start, end):
        token = m[0]
        binary = re.fullmatch(r"[\w.\])]+", before) and before not in ("return", "case", "sizeof")
        # A cast and a declared pointer look binary: a type's name, or a parenthesis after one, stands before.
        cast = token in "-*&+" and re.search(r"(\b(struct|enum|const|sizeof) \w+|\b\w+_t|\bdouble|\bfloat|\bint|\bchar|\bvoid)"
                                             r"[ *]*\)?\s*$", code[start:m.start()])
        if token in FLIPS and (token in ("!", "++", "--") or binary) and not cast:
            yield m.start(), m.end(), FLIPS[token]
        before = token


def after_condition(code, end):
    """code[:end] ends with the parenthesis of an if, for or while."""
    depth, at = 0, end
    while at > 0:
        at -= 1
        depth += (code[at] == ")") - (code[at] == "(")
        if depth == 0:
            return re.search(r"\b(if|for|while|switch)\s*$", code[:at])
    return False


def statements(code, start, end):
    for m in STATEMENT.finditer(code, start + 1, end):
        text, before = m[1], code[start:m.start()]
        control = re.match(r"(case|default|else|do|goto|if|for|while|switch)\b", text)
        declares = TYPES.match(text) or re.match(r"\w+ \*?\w+ *(=|;|\[)", text) and not text.startswith("return ")
        if control or declares or before.count("(") != before.count(")"):
            continue
        if before[-1] != ")" or after_condition(code, m.start()):
            yield m.start(1), m.end(1), ";"


def mutants(text):
    code = blank(text)
    for start, end in bodies(code):
        yield from operators(code, start, end)
        yield from statements(code, start, end)


def copy_tree():
    """The tracked files and the new ones that git does not ignore; a file that did not change keeps its time."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True)
    wanted = {name for name in listed.stdout.decode().split("\0") if name and os.path.isfile(name)}
    for name in wanted:
        target = os.path.join(COPY, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(name, "rb") as f:
            new = f.read()
        if not os.path.exists(target) or open(target, "rb").read() != new:
            shutil.copy(name, target)
    for folder, _, names in os.walk(COPY):
        for name in (os.path.relpath(os.path.join(folder, n), COPY) for n in names):
            if name not in wanted:
                os.remove(os.path.join(COPY, name))


def select_tests(unit, pattern):
    """Names of test programs; the unit's own first, so that most mutants need one link and one run."""
    names = []
    for folder, _, files in sorted(os.walk("tests")):
        kind = folder.split(os.sep)[1] if os.sep in folder else ""
        if pattern is None and folder != os.path.join("tests", "unit", unit.split("/")[0]):
            continue
        names += [f[:-2] for f in files if kind in ("unit", "sim", "parity") and re.fullmatch(r"test_\w+\.c", f)
                  and (pattern is None or re.search(pattern, f[:-2]))]
    stem = os.path.basename(unit)[:-2]
    return sorted(names, key=lambda n: (n != "test_" + stem, not n.startswith("test_" + stem.split("_")[0]), n))


def build(target):
    return subprocess.run(["ninja", "-C", BUILD, target], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def failing_test(tests, programs):
    """The first test that fails, "does not compile", or None. `programs`: path of each test's program."""
    for test in tests:
        if build(test).returncode:
            return "does not compile"
        try:
            run = subprocess.run([programs[test]], cwd=COPY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 timeout=TEST_SECONDS, check=False)
            if run.returncode not in (0, 77):
                return test
        except subprocess.TimeoutExpired:
            return test + " (timeout)"
    return None


def prepare(args, tests):
    copy_tree()
    configure = ["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DATOLL_CUDA=OFF"]
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    programs = {t: os.path.abspath(os.path.join(BUILD, "bin", t)) for t in tests}
    for test in tests:
        done = build(test)
        if done.returncode:
            sys.exit(done.stdout.decode())
    killer = failing_test(tests, programs)
    if killer:
        sys.exit(f"mutate: {killer} fails without a change of {args.file}")
    return programs


def report(counts, total, seconds, survivors):
    print(f"{total} mutants: {counts['killed']} killed, {len(survivors)} survived, {counts['invalid']} did not compile, "
          f"{total - sum(counts.values()) - len(survivors)} not tried, in {seconds:.0f} s")


def main():
    parser = argparse.ArgumentParser(prog="./run mutate")
    parser.add_argument("file")
    parser.add_argument("--tests", metavar="REGEX", help="run the tests of any folder whose name matches")
    parser.add_argument("--limit", type=int, metavar="N", help="try only N mutants, evenly spread")
    args = parser.parse_args()
    unit = os.path.relpath(args.file)
    if not re.fullmatch(r"[a-z].*\.c", unit) or not os.path.isfile(unit):
        sys.exit(f"mutate: {args.file} is no C source of this tree")
    tests = select_tests(unit, args.tests)
    if not tests:
        sys.exit("mutate: no tests: choose some with --tests REGEX")
    with open(unit, encoding="utf-8") as f:
        text = f.read()
    todo = sorted(set(mutants(text)))
    if args.limit and args.limit < len(todo):
        todo = [todo[i * len(todo) // args.limit] for i in range(args.limit)]
    copied, counts, survivors, started = os.path.join(COPY, unit), {"killed": 0, "invalid": 0}, [], time.monotonic()
    try:
        programs = prepare(args, tests)
        print(f"{unit}: {len(todo)} mutants, {len(tests)} test programs", flush=True)
        for start, end, new in todo:
            with open(copied, "w", encoding="utf-8") as f:
                f.write(text[:start] + new + text[end:])
            killer = failing_test(tests, programs)
            if killer:
                counts["invalid" if killer == "does not compile" else "killed"] += 1
                continue
            place, old = text.count("\n", 0, start) + 1, " ".join(text[start:end].split())
            line = text[text.rfind("\n", 0, start) + 1:text.find("\n", start)].strip()
            survivors.append(place)
            print(f"survived: {unit}:{place}: `{old}` -> `{new}` in: {line}", flush=True)
    except KeyboardInterrupt:
        print("stopped")
    report(counts, len(todo), time.monotonic() - started, survivors)


main()
