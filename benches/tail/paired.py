# SPDX-License-Identifier: Apache-2.0
"""Latencies under several conditions, each beside the same block's `nothing`.

Lines on stdin: block, condition, requests, P50, P99, P99.9 and the longest in ns. For each condition and percentile: the
geometric mean of the blocks' ratios to `nothing`, with its 95 % interval (bootstrap over blocks), and the median itself.
The condition `again` is a second `nothing`: its interval is what the run resolves.
"""

import math
import random
import statistics
import sys

PERCENTILES = ("P50", "P99", "P99.9")
DRAWS = 4000


def interval(logs):
    """Bounds of the mean of `logs`: the 2.5th and the 97.5th percentile of means of blocks drawn with replacement."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(DRAWS))
    return means[int(DRAWS * 0.025)], means[int(DRAWS * 0.975)]


def main():
    blocks = {}
    for line in sys.stdin:
        block, condition, _, *values, _ = line.split()
        blocks.setdefault(block, {})[condition] = [float(value) for value in values]
    conditions = list(dict.fromkeys(name for block in blocks.values() for name in block))
    whole = [block for block in blocks.values() if len(block) == len(conditions)]
    if len(whole) < 3:
        sys.exit(f"paired.py: {len(whole)} whole blocks: at least 3 are needed")
    print(f"{len(whole)} blocks; ratio to nothing (95 % interval)")
    print(f"{'':12}" + "".join(f"{name:>36}" for name in PERCENTILES))
    for condition in conditions:
        cells = []
        for at in range(len(PERCENTILES)):
            median = statistics.median(block[condition][at] for block in whole)
            cell = f"{median / 1000:8.0f} µs"
            if condition != "nothing":
                logs = [math.log(block[condition][at] / block["nothing"][at]) for block in whole]
                low, high = interval(logs)
                mean = math.exp(statistics.fmean(logs))
                cell += f"  {mean:.3f} ({math.exp(low):.3f}–{math.exp(high):.3f})"
            cells.append(f"{cell:>36}")
        print(f"{condition:12}" + "".join(cells))


main()
