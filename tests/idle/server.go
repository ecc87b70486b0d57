// SPDX-License-Identifier: Apache-2.0

// An HTTP server on a free port, with a ticker that fires once a second.
package main

import (
	"net"
	"net/http"
	"time"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for range time.Tick(time.Second) {
		}
	}()
	panic(http.Serve(listener, http.NotFoundHandler()))
}
