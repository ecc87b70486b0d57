# SPDX-License-Identifier: Apache-2.0
"""An asyncio server of requests to itself, over a socket. With `blocking`, one coroutine sleeps for 50 ms as a
thread does, and the loop with it; with `awaiting`, it awaits the same.

usage: coroutines.py blocking|awaiting SECONDS
"""

import asyncio
import sys
import time

PAUSE = 0.05


async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def resize_image():
    if sys.argv[1] == "blocking":
        time.sleep(PAUSE)
    else:
        await asyncio.sleep(PAUSE)


async def resize_images(ends):
    while time.monotonic() < ends:
        await asyncio.sleep(PAUSE)
        await resize_image()


async def ask(port, ends):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < ends:
        writer.write(b"x\n")
        await reader.readline()
        await asyncio.sleep(0.002)
    writer.close()


async def main():
    ends = time.monotonic() + float(sys.argv[2])
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await asyncio.gather(ask(port, ends), resize_images(ends))
    server.close()


asyncio.run(main())
