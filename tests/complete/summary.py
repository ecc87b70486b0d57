# SPDX-License-Identifier: Apache-2.0
"""How complete the user stacks of a recording are: in all, by process, and why the others are not.

    summary.py RECORDING [LEAST]

Stacks count as often as they were taken, by samples and by single stalls, as in `wallprof report`. Those with a frame
of run-time code are counted apart. With LEAST (per cent) a smaller share of the others is a failure.
"""

import collections
import functools
import sqlite3
import sys

EXAMPLES = 25
SHOWN_FRAMES = 5


class Stacks:
    def __init__(self, database):
        self.database = database
        self.nodes = {row[0]: row[1:] for row in database.execute("SELECT id, parent, frame FROM node")}
        self.endings = dict(database.execute("SELECT node, ending FROM root"))
        self.kinds = dict(database.execute("SELECT frame, kind FROM frames"))

    @functools.cache
    def ending(self, node):
        if node in self.endings:
            return self.endings[node]
        return self.ending(self.nodes[node][0])

    @functools.cache
    def has_jit(self, node):
        parent, frame = self.nodes[node]
        if frame is None:
            return False
        return self.kinds.get(frame) == "jit" or self.has_jit(parent)

    def text(self, node):
        query = "SELECT stack_text FROM stack_texts WHERE stack = ?"
        frames = self.database.execute(query, [node]).fetchone()[0].split(" < ")
        more = len(frames) - SHOWN_FRAMES
        return " < ".join(frames[:SHOWN_FRAMES]) + (f" < … {more} more" if more > 0 else "")


def taken(database):
    """(process, stack, how often)"""
    sources = [
        "SELECT threads.process, user_stack, sum(count) FROM samples JOIN threads ON threads.id = samples.thread"
        " WHERE user_stack IS NOT NULL AND user_stack <> 0 GROUP BY 1, 2",
        "SELECT threads.process, user_stack, count(*) FROM stalls JOIN threads ON threads.id = stalls.thread"
        " WHERE user_stack IS NOT NULL GROUP BY 1, 2",
    ]
    for source in sources:
        yield from database.execute(source)


class Tally:
    def __init__(self):
        self.all = self.complete = self.jit = self.jit_complete = 0

    def add(self, count, is_complete, is_jit):
        if is_jit:
            self.jit += count
            self.jit_complete += count * is_complete
        else:
            self.all += count
            self.complete += count * is_complete

    def share(self):
        return 100 * self.complete / self.all if self.all else 100.0

    def line(self, name):
        jit = f"{self.jit_complete} of {self.jit}" if self.jit else ""
        return f"{name[:20]:20} {self.complete:>9} of {self.all:>9} {self.share():>8.3f} %  {jit:>22}"


def main():
    database = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
    sys.setrecursionlimit(10_000)
    stacks = Stacks(database)
    total, by_process = Tally(), collections.defaultdict(Tally)
    reasons, incomplete = collections.Counter(), collections.Counter()
    for process, stack, count in taken(database):
        ending, is_jit = stacks.ending(stack), stacks.has_jit(stack)
        total.add(count, ending == "complete", is_jit)
        by_process[process].add(count, ending == "complete", is_jit)
        if ending != "complete":
            reasons[ending, is_jit] += count
            incomplete[process, ending, stack] += count
    print(f"{'process':20} {'complete':>9}    {'stacks':>9} {'share':>10}  {'with run-time code':>22}")
    for name, tally in sorted(by_process.items(), key=lambda item: -(item[1].all + item[1].jit)):
        print(tally.line(name))
    print(total.line("all"))
    print("\nincomplete, by reason:")
    for (reason, is_jit), count in reasons.most_common():
        print(f"{count:>9}  {reason}{' (with run-time code)' if is_jit else ''}")
    print("\nmost frequent incomplete ones:")
    for (process, reason, stack), count in incomplete.most_common(EXAMPLES):
        print(f"{count:>9}  {process}, {reason}: {stacks.text(stack)}")
    if len(sys.argv) > 2 and total.share() < float(sys.argv[2]):
        sys.exit(f"complete: {total.share():.3f} %, less than {sys.argv[2]} %")


main()
