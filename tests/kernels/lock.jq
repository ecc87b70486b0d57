# SPDX-License-Identifier: Apache-2.0
# The required content of a recording of the lock scenario on any kernel: prints one sentence for each missing
# part. Times are meaningless under emulation, so presence and consistency are checked.
#
# Input: the report. Variables: $kernel, $tracepoints (lines of text), $truth and $stalls (arrays).

def symbols: [.[]?.symbol // empty];
def must(condition; sentence): if condition then empty else sentence end;
def sum: add // 0;

# --- the ledger ---

def accounted: (.states | del(.blocked) | sum) + (.states.blocked | sum) + .unaccounted_ns;

def ledger_of(name):
  [.threads[] | select(.comm == name)] as $found
  | if ($found | length) != 1 then "\($found | length) threads are named \(name)"
    else $found[0]
      | must(.wall_ns > 0; "\(name) has no wall time"),
        must(accounted == .wall_ns; "the states of \(name) add up to \(accounted) ns of \(.wall_ns) ns"),
        must(.unaccounted_ns * 1000 <= .wall_ns; "\(.unaccounted_ns) ns of \(name) are unaccounted for"),
        must(.switches.voluntary > 0; "\(name) never slept")
    end;

def threads_of_the_scenario:
  ledger_of("lock"), ledger_of("engine"), ledger_of("housekeeper"),
  ([.threads[] | select(.comm == "engine")][0] // {}
    | must(.samples > 0; "the engine was never sampled"),
      must(.states.blocked.lock > 0; "the engine was never blocked on a lock"),
      must(.states.blocked.sleep > 0; "the engine never slept between ticks")),
  must(($tracepoints | contains("local_timer_entry") | not) or ([.threads[].states.irq] | sum) > 0;
    "no interrupt was counted, though the kernel has tracepoints of its vectors");

# --- page faults ---

def faults_end:
  ([.threads[].faults | .minor + .major] | sum) as $ended
  | must($ended > 0; "no page fault was seen to end"),
    must(([.threads[].latency.fault.count] | sum) == $ended; "page faults that ended have no length"),
    must(([.threads[].states | .fault_minor + .fault_major] | sum) > 0; "page faults took no time"),
    must(([.threads[].faults.failed] | sum) * 100 <= $ended; "\([.threads[].faults.failed] | sum) of \($ended) page faults failed");

# --- the stalls ---

def is_wait_for_lock:
  .syscall == "futex" and .lock != null and (.user_stack | symbols | index("take_registry_lock"));
def names_the_owner: .lock.owner.comm == "housekeeper";
def names_the_waker:
  .waker.comm == "housekeeper" and (.waker.user_stack | symbols | index("release_registry"));
def names_the_kernel: .kernel_stack | symbols | any(startswith("futex_"));

def stalls_of_the_engine:
  ($stalls | map(select(is_wait_for_lock))) as $waits
  | must(all($waits[]; .comm == "engine" and .kind == "off-cpu"); "the engine's stalls go by another name"),
    must($waits | length >= 10; "\($waits | length) stalls name the waiting function, take_registry_lock"),
    must($waits | map(select(names_the_owner)) | length >= 10; "the lock's owner is not named"),
    must($waits | map(select(names_the_waker)) | length >= 5; "the waker's function, release_registry, is not named"),
    must($waits | map(select(names_the_kernel)) | length == ($waits | length); "the kernel's stack is missing");

# Whatever the scenario itself saw waiting for more than a millisecond has its stall.
def operations_are_reported:
  ($truth | map(select(.event == "start"))[0]) as $start
  | ($truth | map(select(.event == "slow" and .waited and .end_ns - .start_ns > 1000000))) as $slow
  | ($slow | map(
      (.start_ns - $start.mono_ns + $start.epoch_ns) as $from
      | (.end_ns - $start.mono_ns + $start.epoch_ns) as $to
      | select(any($stalls[]; is_wait_for_lock and .start_ns < $to and .end_ns > $from)))) as $reported
  | must($slow | length > 0; "the scenario never waited for its lock"),
    must(($reported | length) * 10 >= ($slow | length) * 9;
      "\($reported | length) of \($slow | length) waits for the lock have a stall");

# --- losses ---

# Under load waits are folded, and before 6.2 a wakeup within an interrupt may find the thread's state taken.
def nothing_is_lost:
  must((.losses | del(.waits_folded, .sleeps_without_wakeup)) == {}; "something was lost: \(.losses)"),
  must((.losses.sleeps_without_wakeup // 0) * 100 <= ([.threads[].switches.voluntary] | sum);
    "\(.losses.sleeps_without_wakeup) sleeps ended without a wakeup being seen");

# --- all of it ---

must(.schema == 1; "the report's schema is \(.schema)"),
must(.recording.kernel == $kernel; "the recording is of the kernel \(.recording.kernel)"),
nothing_is_lost,
must(.unwinding.stacks > 0; "no stack was taken"),
threads_of_the_scenario,
faults_end,
stalls_of_the_engine,
operations_are_reported
