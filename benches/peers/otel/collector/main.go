// SPDX-License-Identifier: Apache-2.0

// A collector for the OpenTelemetry eBPF profiler: what the profiler hands over, kept in a file, and the file as
// folded stacks. It stands in for the backend that a user of the profiler runs, with no more than is measured here.
//
//	collector listen SOCKET FILE   keeps what arrives on the Unix socket until it is interrupted
//	collector fold FILE            prints "comm;root;…;leaf COUNT", kernel frames ending in _[k]
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // the profiler compresses with it
)

// What the profiler sends at most in one call.
const mostBytesOfRequest = 32 << 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "collector: %v\n", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 3 && arguments[0] == "listen":
		return listen(arguments[1], arguments[2])
	case len(arguments) == 2 && arguments[0] == "fold":
		return fold(arguments[1], os.Stdout)
	default:
		return errors.New("usage: collector listen SOCKET FILE, or collector fold FILE")
	}
}

// receiver keeps each request as it comes.
type receiver struct {
	pprofileotlp.UnimplementedGRPCServer
	store *store
}

func (r *receiver) Export(_ context.Context, request pprofileotlp.ExportRequest) (pprofileotlp.ExportResponse, error) {
	return pprofileotlp.NewExportResponse(), r.store.add(request)
}

func listen(socket, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("cannot keep profiles: %w", err)
	}
	defer file.Close()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("cannot listen for profiles: %w", err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(mostBytesOfRequest))
	pprofileotlp.RegisterGRPCServer(server, &receiver{store: &store{to: file}})
	interrupted, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	context.AfterFunc(interrupted, server.Stop)
	fmt.Println("listening")
	return server.Serve(listener)
}

func fold(path string, to io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot read profiles: %w", err)
	}
	defer file.Close()
	stacks := newFolder(newSymbolizer(os.DirFS("/")))
	if err := eachRequest(bufio.NewReader(file), stacks.add); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return stacks.print(to)
}
