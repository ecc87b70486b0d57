# SPDX-License-Identifier: Apache-2.0
# The required stalls of the deadlock scenario on any kernel: prints one sentence for each missing part.
#
# Its threads never come back: their stacks are read from outside, by an iterator over sleeping threads.
#
# Input: an array of stalls.

def symbols: [.[]?.symbol // empty];
def must(condition; sentence): if condition then empty else sentence end;

def stuck(name; other):
  map(select(.comm == name and .open)) as $open
  | if ($open | length) != 1 then "\(name) has \($open | length) open stalls"
    else $open[0]
      | must(.reason == "lock"; "\(name) is stuck for \(.reason), not for a lock"),
        must(.user_stack | symbols | index("take_second_lock"); "the waiting function of \(name) is not named"),
        must(.kernel_stack | symbols | any(startswith("futex_")); "the kernel's stack of \(name) is missing"),
        must(.lock.owner.comm == other; "the owner of the lock that \(name) wants is not named")
    end;

stuck("left"; "right"), stuck("right"; "left")
