# SPDX-License-Identifier: Apache-2.0
# Compares the waits in a scenario's own log with those of a tool: one object of counts.
# Input: the lines of the log, slurped. $waits: the tool's waits, in the form of tools.sh.
#
# A logged wait is { tid, start, end, cpu (running time in it, by the thread's CPU clock), reason, function,
# who }; null fields are not compared. Where a scenario logs only sums, the kernel's count of switches is
# compared (`whole`).

# The tolerance of an edge against the thread's own reading of the clock: the system call, the tool's work, an
# interrupt.
def edge: 50000;

def thread(name): [.[] | select(.event == "start").threads[] | select(.name == name).tid][0];
def life($tid): [.[] | select(.event == "thread" and .tid == $tid)][0];

# --- logged waits ---

def lock: thread("housekeeper") as $housekeeper
  | .[] | select(.event == "slow" and .waited and .end_ns - .start_ns - .cpu_ns > 300000)
  | { start: .start_ns, end: .end_ns, cpu: .cpu_ns, reason: "lock", function: "take_registry_lock",
      who: (if .held_by == $housekeeper then $housekeeper else null end) };
# Another program may have had the CPU: the neighbour did if it says itself that it ran for half of the gap.
def preempted: thread("neighbour") as $neighbour
  | [.[] | select(.event == "ran")] as $ran
  | .[] | select(.event == "gap" and .switched and .cpu_ns * 2 < .end_ns - .start_ns and .end_ns - .start_ns > 1000000)
  | . as $gap
  | ([$ran[] | ([.end_ns, $gap.end_ns] | min) - ([.start_ns, $gap.start_ns] | max) | select(. > 0)] | add // 0) as $of_it
  # The interrupt that takes the CPU away comes first, and is no wait.
  | { start: .start_ns, end: .end_ns, cpu: .cpu_ns, edge: 100000, reason: "preempted", function: "watch_clock",
      who: (if $of_it * 2 > .end_ns - .start_ns then $neighbour else null end) };
def fsync:
  .[] | select(.event == "fsync")
  | { start: .start_ns, end: .end_ns, cpu: .cpu_ns, reason: "disk", function: "commit_records", who: null };
def fault: thread("server") as $server
  | .[] | select(.event == "fault")
  | { start: .start_ns, end: .end_ns, cpu: 0, reason: "fault", who: $server,
      function: (if .in == "user" then "touch_page" else "touch_in_syscall" end) };
def deadlock:
  .[] | select(.event == "stuck")
  | { tid, start: .since_ns, end: null, cpu: 0, reason: "lock", function: "take_second_lock", who: .owner };

def waits: [.[] | select(.event == "start").scenario][0] as $scenario
  | if $scenario == "lock" then thread("engine") as $tid | [lock | .tid = $tid]
    elif $scenario == "preempted" then thread("worker") as $tid | [preempted | .tid = $tid]
    elif $scenario == "fsync" then thread("writer") as $tid | [fsync | .tid = $tid]
    elif $scenario == "fault" then thread("reader") as $tid | [fault | .tid = $tid]
    elif $scenario == "deadlock" then [deadlock]
    else [] end;

# Threads of which every wait is compared: reason, function and waker of their voluntary switches.
def whole:
  { sleeper: { reason: "sleep" }, poller: { reason: "poll" }, semaphore: { reason: "wait", who: thread("dispatcher") },
    "worker-0": { reason: "wait", who: thread("dispatcher") },
    ping: { reason: "pipe", function: "await_ball", who: thread("pong") },
    pong: { reason: "pipe", function: "await_ball", who: thread("ping") } } as $asked
  | [.[] | select(.event == "thread" and $asked[.name]) | . + $asked[.name]];

# --- waits of the tool ---

# A right answer, a wrong one, or a question that was not asked.
def mark($asked; right): if $asked == null then { asked: 0, right: 0 } else { asked: 1, right: (if right then 1 else 0 end) } end;
def times($count): map_values({ asked: (.asked * $count), right: (.right * $count) });
def sum: reduce .[] as $one ({}; reduce ($one | keys[]) as $key (.;
  .[$key].asked += $one[$key].asked | .[$key].right += $one[$key].right));

# A wait that was mostly for a CPU has the reason runnable.
def right_reason($reason): .reason == $reason
  or (.reason == "runnable" and .end_ns != null and .runnable_ns * 2 > .end_ns - .start_ns);
def has_function($function): .stack | any(. == $function or startswith($function + "+"));
def has_who($who): .who | any(. == $who);
def answers($asked): { reason: mark($asked.reason; right_reason($asked.reason)),
  stack: mark($asked.function; has_function($asked.function)), who: mark($asked.who; has_who($asked.who)) };
def no_answers($asked): { reason: mark($asked.reason; false), stack: mark($asked.function; false), who: mark($asked.who; false) };

# A wait that started before the recording and did not end in it is open, and starts no later than the
# recording.
def judge_open($mine): . as $was
  | [$mine[] | select(.end_ns == null)] as $found
  | if $found == [] then { seen: mark(1; false), length: mark(1; false) } + no_answers($was)
    else { seen: mark(1; true), length: mark(1; $found | all(.start_ns <= $armed_ns + edge)) } + ($found[0] | answers($was)) end;

# One whose both ends are known. Its waits have to make it up, and the longest one answers.
def judge_ended($mine): . as $was
  | [$mine[] | select(.end_ns != null and .start_ns < $was.end and .end_ns > $was.start)
      | . + { overlap: (([.end_ns, $was.end] | min) - ([.start_ns, $was.start] | max)) }] as $found
  | ($was.end - $was.start) as $length
  | ($was.edge // edge) as $edge
  | ($edge + $was.cpu) as $slack
  | if $found == [] then { seen: mark(1; false), length: mark(1; false) } + no_answers($was)
    else ($found | map(.end_ns - .start_ns) | add) as $off
      | { seen: mark(1; true),
          length: mark(1; $off >= $length - $slack - $edge and $off <= $length + $edge
            and ($found | map(.start_ns) | min) >= $was.start - $slack and ($found | map(.end_ns) | max) <= $was.end + $slack) }
        + ($found | max_by(.overlap) | answers($was)) end;

# All waits of a thread's life: as many as the kernel counted switches, together as long as the thread did not
# run.
def judge_whole($mine): . as $was
  | [$mine[] | select(.end_ns != null and .start_ns >= $was.start_ns and .end_ns <= $was.end_ns)] as $found
  | ($was.voluntary + $was.involuntary) as $switches
  | ($was.end_ns - $was.start_ns - $was.cpu_ns) as $off
  | ($found | map(.end_ns - .start_ns) | add // 0) as $reported_ns
  | [$found[] | select(.reason != "preempted" and .reason != "runnable") | answers($was)] as $answers
  | { seen: { asked: $switches, right: ([$found | length, $switches] | min) },
      length: (mark(1; ($reported_ns - $off | fabs) <= edge + $off / 100) | map_values(. * $switches)) }
    + (if $answers == [] then no_answers($was) | times($switches) else $answers | sum end);

def of($tid): [$waits[] | select(.tid == $tid)];

[ (waits[] | of(.tid) as $mine | if .end == null then judge_open($mine) else judge_ended($mine) end),
  (whole[] | of(.tid) as $mine | judge_whole($mine)) ] | sum
