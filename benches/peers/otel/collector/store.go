// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

// store writes requests one after the other: the length in bytes, 4 of them, little-endian, then the request as it was
// on its way, protobuf in gzip. The file has the size of the sent data.
type store struct {
	lock sync.Mutex
	to   io.Writer
}

func (s *store) add(request pprofileotlp.ExportRequest) error {
	message, err := request.MarshalProto()
	if err != nil {
		return err
	}
	packed := bytes.NewBuffer(make([]byte, 4))
	packer := gzip.NewWriter(packed)
	if _, err := packer.Write(message); err != nil {
		return err
	}
	if err := packer.Close(); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(packed.Bytes(), uint32(packed.Len()-4))
	s.lock.Lock()
	defer s.lock.Unlock()
	_, err = s.to.Write(packed.Bytes())
	return err
}

// eachRequest hands over what store wrote, oldest first.
func eachRequest(from io.Reader, use func(pprofileotlp.ExportRequest)) error {
	for {
		var length uint32
		if err := binary.Read(from, binary.LittleEndian, &length); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("cut off in a length: %w", err)
		}
		request, err := unpack(io.LimitReader(from, int64(length)))
		if err != nil {
			return err
		}
		use(request)
	}
}

func unpack(packed io.Reader) (pprofileotlp.ExportRequest, error) {
	request := pprofileotlp.NewExportRequest()
	unpacker, err := gzip.NewReader(packed)
	if err != nil {
		return request, fmt.Errorf("no request in gzip: %w", err)
	}
	message, err := io.ReadAll(io.LimitReader(unpacker, mostBytesOfRequest+1))
	if err != nil {
		return request, fmt.Errorf("cut off in a request: %w", err)
	}
	if len(message) > mostBytesOfRequest {
		return request, errors.New("a request is longer than the profiler sends")
	}
	return request, request.UnmarshalProto(message)
}
