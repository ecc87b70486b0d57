# SPDX-License-Identifier: Apache-2.0
"""A producer and two consumers, processes, with a bounded multiprocessing.Queue between them.

usage: bounded.py slow|quick SECONDS. With slow, a consumer takes 20 ms for each item, and the producer waits for
space. With quick, the producer makes an item each 10 ms, the consumers wait for work, and so do the processes of a
multiprocessing.Pool.
"""
import multiprocessing
import sys
import time


def name_process(name):
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)


def consume(queue, seconds):
    name_process("render")
    while queue.get():
        time.sleep(seconds)


def put_item(queue, item):
    queue.put(item)


def main():
    slow, end = sys.argv[1] == "slow", time.monotonic() + int(sys.argv[2])
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue(4)
    consumers = [fork.Process(target=consume, args=(queue, 0.02 if slow else 0.001)) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    name_process("feed")
    pool = None if slow else fork.Pool(4, name_process, ("render",))
    while time.monotonic() < end:
        put_item(queue, b"frame")
        if pool:
            pool.apply_async(time.sleep, (0.001,))
            time.sleep(0.01)
    for _ in consumers:
        queue.put(b"")
    if pool:
        pool.terminate()


main()
