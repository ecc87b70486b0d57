# SPDX-License-Identifier: Apache-2.0
"""Validates what `--json` prints against `wallprof help schema`, and runs the questions of docs/assistants.md.

    read_schema.py WALLPROF FOLDER QUESTIONS.md

FOLDER has recordings: lock.db, held.db, doubled.db, and intel-pt.db where it could be made. Undeclared members are
errors here: the schema itself permits those of later versions.
"""

import copy
import json
import os
import re
import subprocess
import sys
import tempfile

import jsonschema

WALLPROF, FOLDER, QUESTIONS = sys.argv[1:]
LOCK, HELD, DOUBLED, TRACE = (f"{FOLDER}/{name}.db" for name in ["lock", "held", "doubled", "intel-pt"])


def ask(*arguments):
    done = subprocess.run([WALLPROF, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def without_other_members(schema):
    """The schema, in which an object that declares members has no others."""
    if isinstance(schema, list):
        return [without_other_members(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: without_other_members(part) for name, part in schema.items()}
    if isinstance(strict.get("properties"), dict) and strict.get("type") == "object":
        strict.setdefault("additionalProperties", False)
    return strict


SCHEMA = json.loads(ask("help", "schema"))
jsonschema.Draft202012Validator.check_schema(SCHEMA)
STRICT = without_other_members(SCHEMA)


def validator(definition):
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": STRICT["$defs"]})


def shape(value):
    """What a schema can tell apart: members, types, signs, empty lists, and the words that it may list."""
    if isinstance(value, dict):
        return tuple((name, shape(member)) for name, member in sorted(value.items()))
    if isinstance(value, list):
        return (bool(value), frozenset(map(shape, value)))
    if isinstance(value, str):
        return value if re.fullmatch("[a-z:-]{1,16}", value) else str
    if isinstance(value, bool) or value is None:
        return value
    return (type(value), value < 0)


LONG = 16


def thinned(value):
    """The value with one member of each shape in its long lists: a thousand threads differ in numbers alone."""
    if isinstance(value, dict):
        return {name: thinned(member) for name, member in value.items()}
    if isinstance(value, list):
        parts = {shape(part): part for part in value}.values() if len(value) > LONG else value
        return [thinned(part) for part in parts]
    return value


def check(definition, text):
    """Validates an object of each shape, which takes a hundredth of the time of all, and returns the objects."""
    objects = [json.loads(line) for line in text.splitlines()]
    assert objects, f"{definition}: nothing was printed"
    accept = validator(definition)
    shapes = {shape(value): value for value in objects}
    for value in map(thinned, shapes.values()):
        wrong = next(accept.iter_errors(value), None)
        assert wrong is None, f"{definition}: {wrong.json_path}: {wrong.message[:500]}"
    print(f"{definition}: {len(objects)}, {len(shapes)} validated")
    return objects


def refuse(definition, value):
    """Of an object without one of its members, and of one with a member more, neither is valid."""
    accept = validator(definition)
    for name in value:
        damaged = copy.copy(value)
        del damaged[name]
        assert not accept.is_valid(damaged), f"{definition} without {name} is valid"
    assert not accept.is_valid({**value, "more": 1}), f"{definition} may have any member"


def outputs():
    for file in sorted(os.listdir(FOLDER)):
        if file.endswith(".db"):
            check("Report", ask("report", f"{FOLDER}/{file}", "--json"))
    stalls = check("Stall", ask("stalls", LOCK, "--json", "--all"))
    assert any(stall["lock"] and stall["lock"]["owner"] for stall in stalls), "no stall has a lock's owner"
    refuse("Stall", stalls[0])
    tail = check("Tail", ask("tail", LOCK, "--json"))
    refuse("Tail", tail[0])
    refuse("SpanKind", tail[0]["kinds"][0])
    diff = check("Diff", ask("diff", HELD, DOUBLED, "--json"))
    refuse("Diff", diff[0])
    check("Blame", ask("blame", LOCK, "--json"))
    blame = check("Blame", ask("blame", LOCK, "--json", "--what-if", "cpu=-50%"))
    refuse("Blame", blame[0])
    if os.path.exists(TRACE):
        assert check("Report", ask("report", TRACE, "--json"))[0]["functions"], "no function of a trace"
        check("CallDiff", ask("diff", TRACE, TRACE, "--view", "calls", "--json"))
    refuse("ThreadNow", check("ThreadNow", ask("stacks", "-p", str(os.getpid()), "--json"))[0])


def runs():
    with tempfile.TemporaryDirectory() as folder:
        for version in ["1", "2"]:
            for run in ["a", "b", "c", "d"]:
                path = f"{folder}/{version}{run}.db"
                ask("record", "--label", f"version={version}", "-d", "0.5", "-o", path, "--", "sleep", "0.2")
        refuse("Runs", check("Runs", ask("runs", folder, "--json"))[0])
        compared = check("ComparedRuns", ask("runs", folder, "--compare", "version", "--json"))
        refuse("ComparedRuns", compared[0])


def questions():
    """Each block of the page prints something, on recordings that have the names of the page."""
    page = open(QUESTIONS, encoding="utf-8").read()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        for name, recording in [("wallprof", LOCK), ("before", HELD), ("after", DOUBLED)]:
            os.symlink(os.path.abspath(recording), f"{folder}/{name}.db")
        os.symlink(os.path.abspath(WALLPROF), f"{folder}/wallprof")
        path = f"{folder}:{os.environ['PATH']}"
        for block in blocks:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block],
                cwd=folder,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0 and done.stdout.strip(), f"{block}: {done.stdout}{done.stderr}"
    print(f"{len(blocks)} questions")


outputs()
runs()
questions()
