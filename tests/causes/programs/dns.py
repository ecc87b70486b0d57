# SPDX-License-Identifier: Apache-2.0
"""`silent ADDRESS`, `answer ADDRESS`: a DNS server on port 53. `lookups SECONDS`: a client of the resolver."""
import socket
import sys
import time

what = sys.argv[1]
if what == "lookups":
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        try:
            socket.getaddrinfo("shop.example", 80, socket.AF_INET, socket.SOCK_STREAM)
        except socket.gaierror:
            pass
        time.sleep(0.05)
else:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((sys.argv[2], 53))
    while True:
        query, client = server.recvfrom(512)
        if what == "answer":
            flags_and_counts = b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00"
            question = query[12 : query.index(b"\0", 12) + 5]
            address = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x7f\x00\x00\x01"
            server.sendto(query[:2] + flags_and_counts + question + address, client)
