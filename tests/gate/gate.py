#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gate: all that a change must pass. docs/gate.md describes it.

    tests/gate/gate.py                      the gate: every step, then one table
    tests/gate/gate.py tests                its steps with tests only
    tests/gate/gate.py verify [STEP ...]    the slow checks that do not gate; writes docs/verified.md
    tests/gate/gate.py repeat TEST [RUNS]   one live test, again and again, alone, beside a load, and on one CPU
    tests/gate/gate.py confirm [TEST ...]   tests of stored runs, live: all, or some
    tests/gate/gate.py rerecord [TEST ...]  the same, and stores the runs and what the readers print of them
    tests/gate/gate.py goldens              stores what the readers print of the runs that are stored

Exit code 1: something failed, and the table says what. A step that prints nothing for SILENCE_SECONDS is killed.
"""

import collections
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORE = ROOT / "target/gate"
KEPT = STORE / "kept"
PASSED = ROOT / "target/gate-passed"
SKIPS = ROOT / "target/skipped-tests"
LEDGER = ROOT / "tests/flaky.toml"
VERIFIED = ROOT / "docs/verified.md"
STORED = ROOT / "tests/stored"

# The profile of the demo is that of the tests: their crates are built once.
PROFILE = "demo"
BINARY = ROOT / "target" / PROFILE / "wallprof"

# A build of SQLite says nothing for a minute and a half on the slowest machine.
SILENCE_SECONDS = 300
# The link of a release takes minutes without a word.
RELEASE_SILENCE_SECONDS = 900
MORE_RUNS = 2
MOST_FLAKY = 4
PURE_AT_ONCE = os.cpu_count() or 1
# What runs beside the pure tests has the CPUs whenever it wants them.
PURE_BEFORE = ["chrt", "--idle", "0"]

# Of a test that failed: never run again (crates/testkit/src/defect.rs).
DEFECT = "DEFECT:"

KERNEL = "6.1"
VERIFY_STEPS = [
    "release",
    "kernels",
    "causes-quick",
    "causes-trixie",
    "confirm",
    "fuzz-smoke",
    "hostile",
    "bench-check",
    "doc",
    "reproducible",
    "packages-test",
    "packages-twice",
    "install-test",
    "kubernetes",
]


def say(line=""):
    print(line, flush=True)


# --- processes, given up when they are silent ---


@dataclasses.dataclass
class Ended:
    """How a command ended, with its output's lines."""

    status: int
    out: list
    err: list
    silent: bool


def run(command, env=None, cwd=ROOT, silence=None, echo=True, on_line=None):
    """Runs a command in a process group of its own, which is killed when it prints nothing for `silence` seconds."""
    silence = silence or SILENCE_SECONDS
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    heard = [time.monotonic()]
    lines = {"out": [], "err": []}

    def read(name, pipe):
        for line in pipe:
            heard[0] = time.monotonic()
            line = line.rstrip("\n")
            lines[name].append(line)
            if echo:
                say(line)
            if on_line:
                on_line(name, line)

    readers = [
        threading.Thread(target=read, args=("out", process.stdout), daemon=True),
        threading.Thread(target=read, args=("err", process.stderr), daemon=True),
    ]
    for reader in readers:
        reader.start()
    silent = False
    while process.poll() is None:
        if time.monotonic() - heard[0] > silence:
            silent = True
            say(f"gate: given up: {' '.join(map(str, command))[:200]} said nothing for {silence} s")
            end_group(process)
            break
        time.sleep(0.05)
    status = process.wait()
    # A child that outlives the command may hold the pipes.
    for reader, pipe in zip(readers, (process.stdout, process.stderr)):
        reader.join(5)
        if not reader.is_alive():
            pipe.close()
    return Ended(status, lines["out"], lines["err"], silent)


def end_group(process):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue


# --- the table ---


@dataclasses.dataclass
class Row:
    """A step's row in the table."""

    step: str
    result: str
    seconds: float
    failed: list = dataclasses.field(default_factory=list)
    flaky: list = dataclasses.field(default_factory=list)
    skips: int = 0
    tests: int = 0


def print_table(rows):
    say()
    say(f"{'step':<12} {'result':<7} {'seconds':>7} {'tests':>6} {'failed':>6} {'FLAKY':>6} {'skips':>6}")
    for row in rows:
        say(
            f"{row.step:<12} {row.result:<7} {row.seconds:>7.0f} {row.tests or '':>6} {len(row.failed) or '':>6}"
            f" {len(row.flaky) or '':>6} {row.skips or '':>6}"
        )
    for row in rows:
        for name in row.failed:
            say(f"failed: {name}")
    for row in rows:
        for name in row.flaky:
            say(f"FLAKY: {name}")


def make_step(name, targets, env=None, silence=None, say=say):
    say(f"\n== make {targets}")
    started = time.monotonic()
    ended = run(
        ["make", "--no-print-directory", *targets.split()],
        env,
        silence=silence,
        echo=False,
        on_line=lambda _, line: say(line),
    )
    seconds = time.monotonic() - started
    failed = [] if ended.status == 0 else [f"make {targets}"]
    return Row(name, "RED" if failed else "green", seconds, failed, skips=sum(map(is_skip, ended.out + ended.err)))


def is_skip(line):
    """Whether a script says that it leaves a part out."""
    return bool(re.search(r"\bSKIPPED\b|\bnot tested\b", line))


class Beside:
    """Steps that run one after the other beside what the caller does. Their output is printed when they have ended."""

    def __init__(self, *steps):
        """Each step is a function of `say` that returns a row."""
        self.lines, self.rows, self.error = [], [], None
        self.thread = threading.Thread(target=self.work, args=(steps,), daemon=True)
        self.thread.start()

    def work(self, steps):
        try:
            for step in steps:
                self.rows.append(step(self.lines.append))
        except Exception as error:
            self.error = error

    def join(self):
        """The rows of the steps."""
        self.thread.join()
        for line in self.lines:
            say(line)
        if self.error:
            raise self.error
        return self.rows


# --- tests ---


@dataclasses.dataclass(frozen=True)
class Program:
    """A test program that cargo has built."""

    name: str
    path: str
    folder: str


def build_tests():
    """The test programs, or None where they do not build."""
    ended = run(
        ["cargo", "test", "--workspace", "--profile", PROFILE, "--no-run", "--message-format=json-render-diagnostics"],
        echo=False,
        on_line=lambda name, line: say(line) if name == "err" else None,
    )
    if ended.status != 0:
        return None
    programs = []
    for line in ended.out:
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        folder = pathlib.Path(message["manifest_path"]).parent
        target = message["target"]
        kind = "" if target["kind"] == ["test"] else f" ({target['kind'][0]})"
        programs.append(Program(f"{folder.name}::{target['name']}{kind}", message["executable"], str(folder)))
    return sorted(programs, key=lambda program: program.name)


@dataclasses.dataclass
class Outcome:
    """The result of one test in one run. `message` is what it printed, and None of a test that passed."""

    message: str | None
    seconds: float = 0.0
    notes: list = dataclasses.field(default_factory=list)

    def is_defect(self):
        return self.message is not None and DEFECT in self.message


RESULT = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (?:.*?)(ok|FAILED|ignored.*)$")
CAPTURED = re.compile(r"^---- (\S+) stdout ----$")


def as_root(command):
    if os.geteuid() == 0:
        return command
    kept = "WALLPROF_STORED,WALLPROF_GOLDENS,WALLPROF_REQUIRE_BPF,WALLPROF_SKIPS,WALLPROF_FORBID_SKIPS,WALLPROF_TESTS,WALLPROF_LIVE,WALLPROF_KEEP,WALLPROF_BPF"
    return ["sudo", f"--preserve-env={kept}", *command]


def run_program(program, tests, env, threads, echo, before=()):
    """Runs some tests of a program, all for None, with the command `before` around it. Returns the outcome of each by
    name, and how the program ended."""
    outcomes, started = {}, [time.monotonic()]

    def on_line(name, line):
        found = RESULT.match(line) if name == "out" else None
        if found and not found[2].startswith("ignored"):
            now = time.monotonic()
            outcomes[found[1]] = Outcome(None if found[2] == "ok" else "", now - started[0])
            started[0] = now
            if echo:
                say(f"  {found[1]} ... {found[2]} ({outcomes[found[1]].seconds:.1f} s)")

    selected = [] if tests is None else ["--exact", *tests]
    command = as_root([program.path, f"--test-threads={threads}", *selected])
    ended = run([*before, *command], env, cwd=program.folder, echo=False, on_line=on_line)
    captured = collections.defaultdict(list)
    test = None
    listed = set()
    for line in ended.out:
        begin = CAPTURED.match(line)
        if begin:
            test = begin[1]
        elif line == "failures:":
            test = None
        elif re.fullmatch(r"    [\w:]+", line) and not test:
            listed.add(line.strip())
        elif test:
            captured[test].append(line)
    # The harness prints on one line with what a child of the test wrote: the list at the end is right.
    for name in listed:
        outcomes.setdefault(name, Outcome("", 0.0))
    for name in listed | set(captured):
        outcomes.setdefault(name, Outcome("")).message = "\n".join(captured[name]).strip() or "no message"
    for line in ended.err:
        note = re.match(r"(?:machine|kept) (\S+): ", line)
        if note and note[1] in outcomes:
            outcomes[note[1]].notes.append(line)
    return outcomes, ended


SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;")


def miscounted(outcomes, ended):
    """A message where the harness ran other tests than those whose outcomes are known."""
    found = next(filter(None, map(SUMMARY.match, ended.out)), None)
    ran = int(found[1]) + int(found[2]) if found else 0
    if not found or ran == len(outcomes):
        return None
    return f"{DEFECT} the harness ran {ran} tests, and {len(outcomes)} of them are known by name"


def crash_of(ended):
    """What killed a test program, or None where it ended by itself: the harness exits with 0 or 101."""
    if ended.silent:
        return f"{DEFECT} the test program printed nothing for {SILENCE_SECONDS} s and was killed"
    if ended.status not in (0, 101):
        return f"{DEFECT} the test program ended with status {ended.status}:\n" + "\n".join(ended.err[-30:])
    return None


@dataclasses.dataclass
class Results:
    """Of all tests of a class: failures by the full name of the test."""

    count: int = 0
    failed: dict = dataclasses.field(default_factory=dict)
    flaky: dict = dataclasses.field(default_factory=dict)
    slowest: list = dataclasses.field(default_factory=list)

    def row(self, step, seconds):
        result = "RED" if self.failed or len(self.flaky) > MOST_FLAKY else "green"
        return Row(step, result, seconds, sorted(self.failed), sorted(self.flaky), 0, self.count)


def report(name, outcome, word):
    say(f"\n---- {word}: {name}")
    say(outcome.message or "")
    for note in outcome.notes:
        say(note)


def run_pure(programs, env):
    """Runs all tests but the live ones. Returns their results, and the live tests by program."""
    results, live = Results(), {}
    lock = threading.Lock()
    # The longest first: their order is the time of the last run.
    known = json.loads(times_file().read_text()) if times_file().exists() else {}
    waiting = collections.deque(sorted(programs, key=lambda program: -known.get(program.name, 0.0)))
    times = {}

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                program = waiting.popleft()
            names = STORE / f"live-{program.name.replace(' ', '-').replace('/', '-')}"
            names.unlink(missing_ok=True)
            own = {**env, "WALLPROF_TESTS": "pure", "WALLPROF_LIVE": str(names)}
            started = time.monotonic()
            outcomes, ended = run_program(program, None, own, PURE_AT_ONCE, echo=False, before=PURE_BEFORE)
            deferred = sorted(set(names.read_text().split())) if names.exists() else []
            with lock:
                times[program.name] = time.monotonic() - started
                pure = [name for name in outcomes if name not in deferred]
                results.count += len(pure)
                if deferred:
                    live[program] = deferred
                failed = [name for name in outcomes if outcomes[name].message is not None]
                for name in failed:
                    results.failed[f"{program.name} {name}"] = outcomes[name]
                crash = (
                    crash_of(ended)
                    or miscounted(outcomes, ended)
                    or unknown(deferred, outcomes)
                    or without_test(program, outcomes)
                )
                if crash or (ended.status != 0 and not failed):
                    message = crash or f"{DEFECT} it ended with status {ended.status}:\n" + "\n".join(ended.err[-30:])
                    results.failed[program.name] = Outcome(message)
                verdict = "FAILED" if failed or crash or ended.status != 0 else "ok"
                say(f"{program.name} ... {verdict}: {len(pure)} tests, {len(deferred)} live ones later,"
                    f" {times[program.name]:.1f} s")

    workers = [threading.Thread(target=work) for _ in range(PURE_AT_ONCE)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    times_file().write_text(json.dumps(times))
    for name, outcome in results.failed.items():
        report(name, outcome, "failed")
    return results, live


def unknown(deferred, outcomes):
    names = sorted(set(deferred) - set(outcomes))
    return f"{DEFECT} live tests that the program does not have: {names}" if names else None


def folder_of_stored(program):
    """Where the runs of a program's tests are stored. None: it is not of the crate `wallprof`, and has none."""
    crate, name = program.name.split("::", 1)
    return STORED / name if crate == "wallprof" else None


def without_test(program, outcomes):
    folder = folder_of_stored(program)
    runs = [path.stem.replace(".", "::") for path in folder.glob("*.zst")] if folder else []
    names = sorted(set(runs) - set(outcomes))
    return f"{DEFECT} stored runs of tests that the program does not have: {names}" if names else None


def times_file():
    return STORE / "times.json"


def run_doctests(results, env):
    command = ["cargo", "test", "--workspace", "--profile", PROFILE, "--doc", "-q"]
    ended = run([*PURE_BEFORE, *command], env, echo=False)
    counted = [re.search(r"(\d+) passed", line) for line in ended.out]
    results.count += sum(int(found[1]) for found in counted if found)
    if ended.status != 0:
        results.failed["doctests"] = Outcome("\n".join(ended.out[-60:] + ended.err[-60:]))
        report("doctests", results.failed["doctests"], "failed")


def run_live(live, env):
    """Runs the live tests one after the other, and those that failed again at the end, by themselves."""
    results, timed, again = Results(), [], []
    for program, tests in sorted(live.items(), key=lambda item: item[0].name):
        say(f"\n{program.name}: {len(tests)} live tests")
        left = list(tests)
        while left:
            outcomes, ended = run_program(program, left, env, 1, echo=True)
            done = [name for name in left if name in outcomes]
            for name in done:
                results.count += 1
                timed.append((outcomes[name].seconds, f"{program.name} {name}"))
                if outcomes[name].message is not None:
                    again.append((program, name, outcomes[name]))
            left = [name for name in left if name not in outcomes]
            if left:
                # The program ended in the first of these tests.
                name, left = left[0], left[1:]
                results.count += 1
                crash = crash_of(ended) or f"{DEFECT} the test did not run; the program ended with {ended.status}"
                again.append((program, name, Outcome(crash)))
            elif crash := crash_of(ended) or miscounted(outcomes, ended):
                again.append((program, "after its tests", Outcome(crash)))
    for program, name, first in again:
        full = f"{program.name} {name}"
        if first.is_defect() or not passes_again(program, name, env):
            results.failed[full] = first
            report(full, first, "failed")
        else:
            results.flaky[full] = first
            report(full, first, "FLAKY")
    results.slowest = sorted(timed, reverse=True)[:15]
    return results


def passes_again(program, name, env):
    for number in range(1, MORE_RUNS + 1):
        say(f"\nagain, by itself, {number} of {MORE_RUNS}: {program.name} {name}")
        outcomes, ended = run_program(program, [name], env, 1, echo=True)
        outcome = outcomes.get(name, Outcome(crash_of(ended) or f"{DEFECT} it did not run"))
        if outcome.message is None:
            return True
        report(name, outcome, f"run {number}")
        if outcome.is_defect():
            return False
    return False


def bpf_env():
    """With BTF and as root BPF must work: a live test that is skipped is a failure then."""
    if os.path.exists("/sys/kernel/btf/vmlinux") and os.geteuid() == 0:
        say("BPF tests are required: root, and /sys/kernel/btf/vmlinux exists.")
        return {"WALLPROF_REQUIRE_BPF": "1"}
    say("BPF tests may be skipped: this needs root and /sys/kernel/btf/vmlinux.")
    return {}


def probe_bpf(env):
    """Whether this machine records, tried once for all test programs."""
    probe = STORE / "probe.db"
    ended = run(as_root([str(BINARY), "record", "-a", "-d", "100ms", "-o", str(probe)]), env, echo=False)
    probe.unlink(missing_ok=True)
    return {**env, "WALLPROF_BPF": "works"} if ended.status == 0 else env


def test_steps(rows, beside=()):
    """The steps with tests. Steps of `beside` need the binary and measure nothing: they run beside the pure tests."""
    env = {**bpf_env(), "WALLPROF_SKIPS": str(SKIPS), "WALLPROF_KEEP": str(KEPT)}
    SKIPS.write_text("")
    started = time.monotonic()
    say("\n== build")
    programs = build_tests()
    rows.append(Row("build", "green" if programs else "RED", time.monotonic() - started))
    if not programs:
        rows[-1].failed = ["the tests do not build"]
        rows.extend(Beside(*beside).join())
        return
    env = probe_bpf(env)
    others = Beside(*beside)
    say("\n== pure tests")
    started = time.monotonic()
    pure, live = run_pure(programs, env)
    run_doctests(pure, env)
    rows.append(pure.row("pure tests", time.monotonic() - started))
    skips = rows[-1].skips = len(skipped())
    rows.extend(others.join())
    say("\n== live tests")
    started = time.monotonic()
    results = run_live(live, env)
    rows.append(results.row("live tests", time.monotonic() - started))
    rows[-1].skips = len(skipped()) - skips
    say("\nThe slowest live tests:")
    for seconds, name in results.slowest:
        say(f"{seconds:7.1f} s  {name}")
    print_skips()
    print_flaky(results)


def skipped():
    return {line for line in SKIPS.read_text().splitlines() if line.startswith("skipped ")}


def print_skips():
    lines = sorted(set(SKIPS.read_text().splitlines()))
    excused = sum(line.startswith("excused ") for line in lines)
    say(f"\n{len(skipped())} tests were skipped, {excused} parts were excused:")
    for line in lines:
        say(line)


def print_flaky(results):
    known = {entry["test"] for table in tomllib.loads(LEDGER.read_text()).values() for entry in table}
    for name in results.flaky:
        where = "is in" if name in known else "belongs into"
        say(f"FLAKY: {name} {where} {LEDGER.relative_to(ROOT)}")
    if len(results.flaky) > MOST_FLAKY:
        say(f"gate: {len(results.flaky)} FLAKY tests in one run; at most {MOST_FLAKY} may be")


# --- the gate ---


def commit():
    """The commit of the tree, None where it has other changes."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
    return head.stdout.strip() if head.returncode == 0 and not changes.stdout.strip() else None


def machine():
    cpus = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", cpus)
    return f"{os.cpu_count()} CPUs of {model[1] if model else 'an unknown model'}, kernel {os.uname().release}"


def gate():
    started = time.monotonic()
    PASSED.unlink(missing_ok=True)
    head = commit()
    say(machine())
    built = {"WALLPROF": str(BINARY)}
    rows = [make_step("lint", "lint")]
    test_steps(
        rows,
        [
            lambda say: make_step("systemd", "systemd", built, say=say),
            lambda say: make_step("readers", "readers", built, say=say),
            lambda say: make_step("kernel", "kernel", {"KERNEL": KERNEL, **built}, say=say),
        ],
    )
    rows.append(make_step("demo", "demo"))
    print_table(rows)
    red = finish(rows, started)
    # Another commit than the one that was built and tested has not passed.
    if not red and head and head == commit():
        PASSED.write_text(head + "\n")
    elif not red:
        say("gate: the tree has changes that are not committed, or changed meanwhile: no commit passed")
    return red


def finish(rows, started):
    """Says how a run ended. Its exit code."""
    red = [row.step for row in rows if row.result != "green"]
    say(f"\nAll steps took {time.monotonic() - started:.0f} s on {machine()}.")
    tests = sum(row.tests for row in rows)
    failed = sum(len(row.failed) for row in rows if row.tests)
    say(f"{tests - failed} passed, {failed} failed, {sum(row.skips for row in rows)} skipped")
    if red:
        say(f"gate: RED: {', '.join(red)}")
        return 1
    say("gate: green")
    return 0


def tests_only():
    started = time.monotonic()
    rows = []
    test_steps(rows)
    print_table(rows)
    # Other steps have not run, so no commit has passed.
    return finish(rows, started)


# --- the slow checks ---


def verify(names):
    started = time.monotonic()
    # Checks write pages of docs/.
    head = commit()
    # A check that leaves something out is none.
    os.environ["WALLPROF_REQUIRE_KUBERNETES"] = "1"
    rows = [make_step(name, name, silence=RELEASE_SILENCE_SECONDS) for name in names or VERIFY_STEPS]
    print_table(rows)
    write_verified(rows, head[:12] if head else "changed")
    say(f"\nAll checks took {time.monotonic() - started:.0f} s on {machine()}.")
    return 1 if any(row.result != "green" for row in rows) else 0


def write_verified(rows, head):
    """Keeps the rows of checks that did not run now."""
    today = datetime.date.today().isoformat()
    table = {}
    if VERIFIED.exists():
        for line in VERIFIED.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("| `make "):
                table[cells[0]] = cells
    for row in rows:
        name = f"`make {row.step}`"
        table[name] = [name, row.result, f"{row.seconds:.0f}", head, today, machine()]
    order = [f"`make {name}`" for name in VERIFY_STEPS]
    lines = [table[name] for name in sorted(table, key=lambda name: order.index(name) if name in order else 99)]
    with VERIFIED.open("w") as out:
        out.write(
            "# Last run of the slow checks\n\n"
            "`make verify` writes this page. These checks take too long, or depend too much on a quiet machine, to run\n"
            "before each change ([the gate](gate.md)). They run before an issue is closed, and after each change in `bpf/`.\n\n"
            "| check | result | seconds | commit | date | machine |\n| --- | --- | ---: | --- | --- | --- |\n"
        )
        out.writelines(f"| {' | '.join(cells)} |\n" for cells in lines)


# --- one live test, again and again ---


class Load:
    """`stress-ng` on every CPU, while the context lasts."""

    def __enter__(self):
        self.process = subprocess.Popen(
            ["stress-ng", "--quiet", "--cpu", str(os.cpu_count()), "--vm", "1", "--vm-bytes", "64M"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __exit__(self, *_):
        end_group(self.process)


def repeat(test, runs):
    if not shutil.which("stress-ng"):
        sys.exit("gate: stress-ng is not installed: make test-packages")
    programs = build_tests()
    if not programs:
        return 1
    # A test of a stored run is to record each time, too.
    env = probe_bpf({**bpf_env(), "WALLPROF_KEEP": str(KEPT), "WALLPROF_STORED": "live"})
    found = [(program, name) for program in programs for name in names_of(program) if test in (name, name.split("::")[-1])]
    if len(found) != 1:
        sys.exit(f"gate: {len(found)} tests have the name {test}" + "".join(f"\n  {p.name} {n}" for p, n in found))
    program, name = found[0]
    failures = collections.Counter()
    for number in range(1, runs + 1):
        way = way_of(number)
        say(f"\nrun {number} of {runs}, {way}: {program.name} {name}")
        one_cpu = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if way == ONE_CPU else []
        with Load() if way == LOADED else contextlib.nullcontext():
            outcomes, ended = run_program(program, [name], env, 1, echo=True, before=one_cpu)
        outcome = outcomes.get(name, Outcome(crash_of(ended) or "it did not run"))
        if outcome.message is not None:
            failures[way] += 1
            report(name, outcome, f"run {number}")
    say(f"\n{runs - failures.total()} of {runs} runs passed")
    for way, count in failures.items():
        say(f"  failed {way}: {count} of {sum(way == way_of(number) for number in range(1, runs + 1))}")
    return 1 if failures else 0


# --- stored runs ---


def stored(tests, store):
    """Tests of stored runs, live. Where `store`, their runs and what the readers print of them are stored anew."""
    started = time.monotonic()
    programs = programs_of_stored()
    if not programs:
        return 1
    env = probe_bpf({**bpf_env(), "WALLPROF_SKIPS": str(SKIPS), "WALLPROF_KEEP": str(KEPT)})
    SKIPS.write_text("")
    live = {}
    for program in programs:
        names = STORE / f"stored-{program.name.replace('::', '-')}"
        names.unlink(missing_ok=True)
        run_program(program, None, {**env, "WALLPROF_TESTS": "stored", "WALLPROF_LIVE": str(names)}, PURE_AT_ONCE, False)
        found = names.read_text().split() if names.exists() else []
        wanted = [name for name in found if not tests or any(is_meant(test, program, name) for test in tests)]
        if wanted:
            live[program] = sorted(wanted)
    results = run_live(live, {**env, "WALLPROF_STORED": "write" if store else "live"})
    rows = [results.row("live", time.monotonic() - started)]
    rows[0].skips = len(skipped())
    if store:
        rows.append(print_goldens(programs, live))
    print_table(rows)
    print_skips()
    return 1 if any(row.result != "green" for row in rows) else 0


def is_meant(word, program, test):
    """A program, or a test with or without its modules."""
    return program.name == f"wallprof::{word}" or test == word or test.endswith(f"::{word}")


def programs_of_stored():
    """The test programs that have stored runs: each has a folder."""
    programs = build_tests() or []
    return [program for program in programs if (folder := folder_of_stored(program)) and folder.is_dir()]


def print_goldens(programs, tests):
    """Stores what the readers print. `tests` by program; all for None."""
    started = time.monotonic()
    results = Results()
    for program in programs:
        selected = None if tests is None else tests.get(program, [])
        if selected == []:
            continue
        own = {"WALLPROF_TESTS": "pure", "WALLPROF_LIVE": "/dev/null", "WALLPROF_GOLDENS": "write"}
        outcomes, ended = run_program(program, selected, own, PURE_AT_ONCE, echo=False)
        results.count += len(outcomes)
        results.failed.update({f"{program.name} {name}": outcome for name, outcome in outcomes.items() if outcome.message})
        crash = crash_of(ended) or miscounted(outcomes, ended)
        if crash:
            results.failed[program.name] = Outcome(crash)
    for name, outcome in results.failed.items():
        report(name, outcome, "failed")
    return results.row("goldens", time.monotonic() - started)


def goldens():
    row = print_goldens(programs_of_stored(), None)
    print_table([row])
    say("What differs is in `git diff tests/stored`: read it.")
    return 1 if row.result != "green" else 0


ALONE, LOADED, ONE_CPU = "alone", "beside stress-ng", "on one CPU"


def way_of(number):
    """Half of the runs are beside a load. On one CPU, threads take turns that else run at the same time: where the
    kernel puts two threads is chance, and a test must not presume it."""
    if number % 2 == 0:
        return LOADED
    return ONE_CPU if number % 4 == 3 else ALONE


def names_of(program):
    ended = run(as_root([program.path, "--list"]), cwd=program.folder, echo=False)
    return [line.removesuffix(": test") for line in ended.out if line.endswith(": test")]


def main(arguments):
    os.chdir(ROOT)
    STORE.mkdir(parents=True, exist_ok=True)
    match arguments:
        case []:
            return gate()
        case ["tests"]:
            return tests_only()
        case ["verify", *names]:
            return verify(names)
        case ["confirm", *tests]:
            return stored(tests, store=False)
        case ["rerecord", *tests]:
            return stored(tests, store=True)
        case ["goldens"]:
            return goldens()
        case ["repeat", test]:
            return repeat(test, 20)
        case ["repeat", test, runs] if runs.isdigit() and int(runs) > 0:
            return repeat(test, int(runs))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
