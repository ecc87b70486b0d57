# SPDX-License-Identifier: Apache-2.0
"""`serve PORT`: an application whose `/slow` takes 200 ms. `client PORT PATH SECONDS`: asks for it again and again."""
import http.client
import http.server
import sys
import time


class Application(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(0.2 if self.path == "/slow" else 0)
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_):
        pass


if sys.argv[1] == "serve":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Application).serve_forever()
else:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]))
    end = time.monotonic() + float(sys.argv[4])
    while time.monotonic() < end:
        connection.request("GET", sys.argv[3])
        connection.getresponse().read()
        time.sleep(0.05)
