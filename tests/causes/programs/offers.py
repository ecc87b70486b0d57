# SPDX-License-Identifier: Apache-2.0
"""A WSGI application that takes 30 ms for an offer, and clients of it: python3 offers.py PORT PATH CLIENTS SECONDS.

Each client makes a connection for each request, and pauses for 20 ms between two."""

import http.client
import sys
import threading
import time


def find_offer():
    time.sleep(0.03)


def application(environ, start_response):
    if environ["PATH_INFO"] == "/offer":
        find_offer()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"42\n"]


def ask(port, path, end):
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()
        time.sleep(0.02)


def main():
    port, path, clients, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    end = time.monotonic() + seconds
    for _ in range(clients):
        threading.Thread(target=ask, args=(port, path, end)).start()


if __name__ == "__main__":
    main()
