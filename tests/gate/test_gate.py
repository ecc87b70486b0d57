# SPDX-License-Identifier: Apache-2.0
"""What the gate does with tests that fail: always, in half of their runs, with a defect, by a crash, by silence.

The test program here is a script that prints what the harness of Rust prints.
"""

import contextlib
import dataclasses
import io
import pathlib
import stat
import tempfile
import unittest
from unittest import mock

import gate

HARNESS = '''\
#!/usr/bin/env python3
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
failed = {}
for name in arguments or TESTS:
    runs = here / (name.replace("::", ".") + ".runs")
    run = int(runs.read_text()) + 1 if runs.exists() else 1
    runs.write_text(str(run))
    if os.environ.get("WALLPROF_TESTS") == "pure" and name.startswith("live"):
        open(os.environ["WALLPROF_LIVE"], "a").write(name + "\\n")
        print(f"test {name} ... ok", flush=True)
        continue
    print(f"test {name} ... ", end="", flush=True)
    does = TESTS[name](run)
    if does == "crash":
        os.abort()
    if does == "silence":
        time.sleep(60)
    if does == "crash at the end":
        import atexit
        atexit.register(os.abort)
        does = None
    if does:
        failed[name] = does
        print(f"machine {name}: load 7", file=sys.stderr, flush=True)
    print("FAILED" if does else "ok", flush=True)
if failed:
    print("\\nfailures:\\n")
    for name, message in failed.items():
        print(f"---- {name} stdout ----\\n{message}\\n")
    print("\\nfailures:")
    for name in failed:
        print(f"    {name}")
    print()
sys.exit(101 if failed else 0)
'''

PASSES = "lambda run: None"
ALWAYS = "lambda run: 'the figure is 3'"
FIRST = "lambda run: 'the figure is 3' if run == 1 else None"
SECOND_TOO = "lambda run: 'the figure is 3' if run < 3 else None"
DEFECT_ONCE = "lambda run: 'DEFECT: the ledger adds up to 3 ns' if run == 1 else None"
DEFECT_LATER = "lambda run: 'the figure is 3' if run == 1 else 'DEFECT: left in the kernel' if run == 2 else None"
CRASH = "lambda run: 'crash'"
CRASH_AT_THE_END = "lambda run: 'crash at the end'"
SILENCE = "lambda run: 'silence'"


class Planted(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(gate, "STORE", self.folder))
        self.enterContext(mock.patch.object(gate, "SILENCE_SECONDS", 2))
        self.enterContext(mock.patch.object(gate, "as_root", lambda command: command))

    def program(self, **tests):
        path = self.folder / "program"
        table = ", ".join(f'"{name.replace("__", "::")}": {does}' for name, does in tests.items())
        path.write_text(HARNESS.replace("import os,", f"TESTS = {{{table}}}\nimport os,", 1))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return gate.Program("crate::program", str(path), str(self.folder))

    def live(self, **tests):
        program = self.program(**tests)
        self.output = io.StringIO()
        with contextlib.redirect_stdout(self.output):
            results = gate.run_live({program: [name.replace("__", "::") for name in tests]}, {})
        return results

    def runs(self, name):
        return int((self.folder / f"{name}.runs").read_text())

    def test_tests_that_pass_are_green_and_run_once(self):
        results = self.live(live_a=PASSES, live__b=PASSES)
        self.assertEqual((results.count, results.failed, results.flaky), (2, {}, {}))
        self.assertEqual(results.row("live", 1).result, "green")
        self.assertEqual(self.runs("live.b"), 1)

    def test_test_that_fails_once_is_flaky_and_shown(self):
        for does, runs in [(FIRST, 2), (SECOND_TOO, 3)]:
            results = self.live(live_a=does, live_b=PASSES)
            self.assertEqual(list(results.flaky), ["crate::program live_a"])
            row = results.row("live", 1)
            self.assertEqual((row.result, row.flaky, row.failed), ("green", ["crate::program live_a"], []))
            self.assertIn("the figure is 3", self.output.getvalue())
            self.assertIn("machine live_a: load 7", self.output.getvalue())
            self.assertEqual((self.runs("live_a"), self.runs("live_b")), (runs, 1))
            (self.folder / "live_a.runs").unlink()
            (self.folder / "live_b.runs").unlink()

    def test_test_that_always_fails_is_red(self):
        results = self.live(live_a=ALWAYS)
        self.assertEqual((list(results.failed), results.flaky), (["crate::program live_a"], {}))
        self.assertEqual(self.runs("live_a"), 1 + gate.MORE_RUNS)
        self.assertEqual(results.row("live", 1).result, "RED")

    def test_defect_is_red_however_rare(self):
        for does, runs in [(DEFECT_ONCE, 1), (DEFECT_LATER, 2)]:
            results = self.live(live_a=does)
            self.assertEqual((list(results.failed), results.flaky), (["crate::program live_a"], {}))
            self.assertEqual(self.runs("live_a"), runs)
            (self.folder / "live_a.runs").unlink()

    def test_crash_is_red_and_the_other_tests_run(self):
        results = self.live(live_a=PASSES, live_b=CRASH, live_c=PASSES)
        self.assertEqual((results.count, list(results.failed)), (3, ["crate::program live_b"]))
        self.assertEqual((self.runs("live_a"), self.runs("live_b"), self.runs("live_c")), (1, 1, 1))

    def test_crash_after_the_tests_is_red(self):
        results = self.live(live_a=CRASH_AT_THE_END)
        self.assertEqual((results.count, list(results.failed)), (1, ["crate::program after its tests"]))

    def test_silence_is_given_up_and_the_other_tests_run(self):
        results = self.live(live_a=SILENCE, live_b=PASSES)
        self.assertEqual((results.count, list(results.failed)), (2, ["crate::program live_a"]))

    def test_five_flaky_tests_are_red_and_four_are_not(self):
        for count, expected in [(4, "green"), (5, "RED")]:
            results = self.live(**{f"live_{number}_of_{count}": FIRST for number in range(count)})
            self.assertEqual((results.row("live", 1).result, len(results.flaky)), (expected, count))

    def test_pure_tests_fail_once_and_live_ones_are_deferred(self):
        program = self.program(pure_a=FIRST, pure_b=PASSES, live_c=ALWAYS)
        with contextlib.redirect_stdout(io.StringIO()):
            results, live = gate.run_pure([program], {})
        self.assertEqual((results.count, list(results.failed)), (2, ["crate::program pure_a"]))
        self.assertEqual(live, {program: ["live_c"]})
        self.assertEqual(self.runs("pure_a"), 1)

    def test_stored_run_without_its_test_is_red(self):
        self.enterContext(mock.patch.object(gate, "STORED", self.folder / "stored"))
        runs = self.folder / "stored/program"
        runs.mkdir(parents=True)
        (runs / "matrix.lock.zst").touch()
        program = self.program(matrix__lock=PASSES)
        namesake = dataclasses.replace(program, name="other::program")
        program = dataclasses.replace(program, name="wallprof::program")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(gate.run_pure([program], {})[0].failed, {})
            (runs / "matrix.gone.zst").touch()
            self.assertEqual(gate.run_pure([namesake], {})[0].failed, {})
            failed = gate.run_pure([program], {})[0].failed
        self.assertIn("matrix::gone", failed["wallprof::program"].message)

    def test_tests_of_stored_runs_are_meant_by_program_module_and_name(self):
        program = gate.Program("wallprof::findings", "", "")
        for word in ("findings", "matrix::fires::lock", "fires::lock", "lock"):
            self.assertTrue(gate.is_meant(word, program, "matrix::fires::lock"), word)
        for word in ("truth", "lo", "fires"):
            self.assertFalse(gate.is_meant(word, program, "matrix::fires::lock"), word)

    def test_pure_program_that_crashes_is_red(self):
        with contextlib.redirect_stdout(io.StringIO()):
            results, _ = gate.run_pure([self.program(pure_a=CRASH)], {})
        self.assertEqual(list(results.failed), ["crate::program"])

    def test_steps_beside_others_are_rows_and_their_output_comes_whole(self):
        def step(name, result):
            return lambda say: (say(f"{name} says"), gate.Row(name, result, 1.0))[1]

        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            others = gate.Beside(step("kernel", "RED"), step("readers", "green"))
            gate.say("a pure test")
            rows = others.join()
        self.assertEqual([(row.step, row.result) for row in rows], [("kernel", "RED"), ("readers", "green")])
        self.assertTrue(output.getvalue().endswith("kernel says\nreaders says\n"))

    def test_step_beside_others_that_raises_is_not_green(self):
        def broken(say):
            raise OSError("no make")

        with self.assertRaisesRegex(OSError, "no make"):
            gate.Beside(broken).join()

    def test_parts_that_a_step_leaves_out_are_skips(self):
        said = ["SKIPPED: no npm", "tested", "x is not tested: y"]
        ended = gate.run(["printf", "%s\\n", *said], echo=False)
        with contextlib.redirect_stdout(io.StringIO()), mock.patch.object(gate, "run", lambda *_, **__: ended):
            row = gate.make_step("step", "step")
        self.assertEqual((row.result, row.skips), ("green", 2))

    def whole_gate(self, tests, commits):
        """The exit code of a gate whose test steps have the row `tests`, what it prints, and the commit that passed."""
        passed, output = self.folder / "passed", io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            mock.patch.object(gate, "PASSED", passed),
            mock.patch.object(gate, "commit", mock.Mock(side_effect=commits)),
            mock.patch.object(gate, "make_step", lambda name, *_, **__: gate.Row(name, "green", 1.0)),
            mock.patch.object(gate, "test_steps", lambda rows, beside: rows.append(tests)),
        ):
            code = gate.gate()
        return code, output.getvalue(), passed.read_text().strip() if passed.exists() else None

    def test_whole_gate_says_which_commit_passed(self):
        green = gate.Row("live tests", "green", 1.0, flaky=["crate::program live_a"], skips=1, tests=9)
        code, said, passed = self.whole_gate(green, ["f00", "f00"])
        self.assertEqual((code, passed), (0, "f00"))
        self.assertIn("FLAKY: crate::program live_a\n", said)
        self.assertIn("9 passed, 0 failed, 1 skipped\ngate: green\n", said)
        for commits in ([None], ["f00", "f01"], ["f00", None]):
            code, said, passed = self.whole_gate(green, commits)
            self.assertEqual((code, passed), (0, None))
            self.assertIn("no commit passed", said)

    def test_gate_with_a_failure_is_red_and_nothing_passed(self):
        red = gate.Row("live tests", "RED", 1.0, ["crate::program live_a"], tests=9)
        code, said, passed = self.whole_gate(red, ["f00", "f00"])
        self.assertEqual((code, passed), (1, None))
        self.assertIn("failed: crate::program live_a\n", said)
        self.assertIn("8 passed, 1 failed, 0 skipped\ngate: RED: live tests\n", said)

    def test_tests_alone_do_not_pass_a_commit(self):
        row = gate.Row("live tests", "green", 1.0, tests=9)
        passed = self.folder / "passed"
        with (
            contextlib.redirect_stdout(io.StringIO()),
            mock.patch.object(gate, "PASSED", passed),
            mock.patch.object(gate, "test_steps", lambda rows: rows.append(row)),
        ):
            self.assertEqual((gate.tests_only(), passed.exists()), (0, False))

    def test_steps_run_although_the_tests_do_not_build(self):
        rows = []
        with (
            contextlib.redirect_stdout(io.StringIO()),
            mock.patch.object(gate, "build_tests", lambda: None),
            mock.patch.object(gate, "SKIPS", self.folder / "skips"),
        ):
            gate.test_steps(rows, [lambda say: gate.Row("kernel", "green", 1.0)])
        self.assertEqual([(row.step, row.result) for row in rows], [("build", "RED"), ("kernel", "green")])


if __name__ == "__main__":
    unittest.main()
