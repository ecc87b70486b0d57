# SPDX-License-Identifier: Apache-2.0
# The required content of a recording that was made while a CPU went offline and came back, and the wall clock
# was stepped by an hour: prints one sentence for each thing it does not.

def must(condition; sentence): if condition then empty else sentence end;
def sum: add // 0;
def accounted: (.states | del(.blocked) | sum) + (.states.blocked | sum) + .unaccounted_ns;

must(.losses.cpus_came_online == 1; "a CPU went away and came back once, but: \(.losses)"),
must(.recording.duration_ns < 900e9; "a step of the clock made the recording \(.recording.duration_ns) ns long"),
(.threads[]
  | must(accounted == .wall_ns;
      "after a step of the clock the states of \(.comm) add up to \(accounted) ns of \(.wall_ns) ns"))
