#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The attacks of run.sh, run without rights as the user that calls it.

usage: hostile.py ATTACK SECONDS FOLDER

  sparse   runs small ELF files, each a new one, with huge tables in their headers
  symbols  runs small ELF files, each a new one, with symbol tables of 240 MB that are almost all hole
  twins    runs copies of one program, each a new file of 200 MB that is almost all hole
  cut      runs copies of a program, and truncates a file that it maps as code
  rows     runs files, each a new one, with very many unwind entries
  maps     maps thousands of parts of a file as code
  names    renames its thread to control sequences of terminals
  threads  starts threads, 500 at a time

With `harmless-` before its name the attack does the same with ordinary files, mappings and names.
"""

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import sys
import threading
import time

attack, seconds = sys.argv[1].removeprefix("harmless-"), float(sys.argv[2])
harmless = sys.argv[1].startswith("harmless-")
end = time.monotonic() + seconds
libc = ctypes.CDLL(None)
os.chdir(sys.argv[3])
PR_SET_NAME = 15
LOOP = b"\x48\x31\xc0\xb9\x00\x00\x00\x02\xff\xc9\x75\xfc\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"  # counts, then exit(0)


def elf(unwind, claimed, symbols, number):
    """A program that spins for some milliseconds. Its .eh_frame and .symtab may be larger in the header than in the file."""
    code_at, unwind_at = 0x1000, 0x2000
    names = b"\0.eh_frame\0.symtab\0.strtab\0.note.gnu.build-id\0.shstrtab\0"
    note = struct.pack("<III4s20s", 4, 20, 3, b"GNU\0", number.to_bytes(20, "little"))
    note_at = unwind_at + len(unwind)
    names_at = note_at + len(note)
    headers_at = (names_at + len(names) + 15) & ~15
    section = lambda name, kind, address, at, size, link=0, entry=0: struct.pack(
        "<IIQQQQIIQQ", names.index(name) if name else 0, kind, 2 if address else 0, address, at, size, link, 0, 8, entry)
    symbols_at = headers_at + 7 * 64
    sections = b"".join([
        b"\0" * 64,
        section(b".eh_frame", 1, 0x402000, unwind_at, claimed or len(unwind)),
        section(b".symtab", 2, 0, symbols_at, symbols, 3, 24),
        section(b".strtab", 3, 0, symbols_at, symbols),
        section(b".note.gnu.build-id", 7, 0, note_at, len(note)),
        section(b".shstrtab", 3, 0, names_at, len(names)),
        b"\0" * 64,
    ])
    segment = lambda kind, flags, at, address, size: struct.pack("<IIQQQQQQ", kind, flags, at, address, address, size, size, 0x1000)
    header = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x401000, 64, headers_at, 0, 64, 56, 2, 64, 6, 5)
    start = header + segment(1, 5, code_at, 0x401000, 0x1000) + segment(4, 4, note_at, 0x402000 + note_at - unwind_at, len(note))
    image = bytearray(headers_at + len(sections))
    for at, part in [(0, start), (code_at, LOOP), (unwind_at, unwind), (note_at, note), (names_at, names), (headers_at, sections)]:
        image[at:at + len(part)] = part
    return bytes(image), max(symbols_at + symbols, unwind_at + claimed)


def entries(count):
    """A CIE, and FDEs that cover 16 bytes of code each, with distinct rules."""
    cie = struct.pack("<II", 16, 0) + b"\1zR\0\1\x78\x10\1\x1b\x0c\7\x08"
    out = bytearray(cie)
    for number in range(count):
        at = len(out)
        where = 0x401000 + number % 0x1000 - (0x402000 + at + 8)
        out += struct.pack("<IIiIB", 20, at + 4, where, 16, 0) + b"\x0e" + bytes([8 + number % 64, 0x41, 0x0e, 8 + number // 64 % 64, 0, 0])
    return bytes(out + b"\0\0\0\0")


def run(image, size, number):
    path = f"./p{number % 64}"
    if os.path.exists(path):
        os.remove(path)
    with open(path, "wb") as file:
        file.write(image)
        file.truncate(max(size, len(image)))
    os.chmod(path, 0o755)
    subprocess.run([path], check=False)


def sparse(number):
    huge = 0 if harmless else [1 << 34, 24 << 30, 1 << 40][number % 3]
    run(*elf(entries(8), huge // 3 if number % 2 else 0, huge, number), number)


def symbols(number):
    size = 240 if harmless else 240_000_000
    image, size = elf(entries(8), 0, size, number)
    run(image, size, number)


def twins(number):
    image, size = elf(entries(8), 0, 240, 1)
    run(image, 4096 if harmless else 200_000_000, number)


def cut(number):
    path = f"./c{number % 64}"
    if os.path.exists(path):
        os.remove(path)
    shutil.copy("/usr/bin/python3", path)
    child = subprocess.Popen([path, "-c", "sum(range(1000000))"], stderr=subprocess.DEVNULL)
    if not harmless:
        # The file of a running program cannot be written to, but another file that it maps can.
        data = f"./d{number % 64}"
        shutil.copy("/usr/bin/python3", data)
        with open(data, "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
            libc.sched_yield()
            file.truncate(4096)
            mapped.close()
    child.wait()


MANY = entries(400_000)
FEW = entries(40)


def rows(number):
    run(*elf(FEW if harmless else MANY, 0, 0, number), number)


def maps(number):
    file = open("/usr/bin/python3", "rb")
    wanted = 40 if harmless else 4000
    held = [mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE,
                      offset=4096 * (at * 2 % 800)) for at in range(wanted)]
    sum(range(100_000))
    for part in held:
        part.close()


def names(number):
    evil = [b"\x1b]0;own\x07", b"a\nb;c", b"\xe2\x80\xaeevil", b"%s%n{}\"", b"\xff\xfe\x9b31m", b"redis-server"]
    name = f"ordinary-{number % 6}".encode() if harmless else evil[number % 6]
    for _ in range(200):
        libc.prctl(PR_SET_NAME, name + str(number % 1000).encode())
        sum(range(2000))
    time.sleep(0.001)


def threads(number):
    wanted = 5 if harmless else 500
    started = [threading.Thread(target=time.sleep, args=(0.02,)) for _ in range(wanted)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


number = 0
while time.monotonic() < end:
    try:
        {"sparse": sparse, "symbols": symbols, "twins": twins, "cut": cut, "rows": rows, "maps": maps, "names": names, "threads": threads}[attack](number)
    except (OSError, RuntimeError, ValueError):
        time.sleep(0.01)
    number += 1
print(f"{number} rounds")
