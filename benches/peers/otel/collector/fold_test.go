// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"
	"testing/fstest"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

// builder makes a request as the profiler does: every table begins with an empty entry.
type builder struct {
	pprofile.Profiles
	dictionary pprofile.ProfilesDictionary
}

func newBuilder() builder {
	profiles := pprofile.NewProfiles()
	tables := profiles.Dictionary()
	tables.StringTable().Append("")
	tables.FunctionTable().AppendEmpty()
	tables.MappingTable().AppendEmpty()
	tables.LocationTable().AppendEmpty()
	tables.StackTable().AppendEmpty()
	tables.AttributeTable().AppendEmpty()
	return builder{profiles, tables}
}

func (b builder) text(text string) int32 {
	b.dictionary.StringTable().Append(text)
	return int32(b.dictionary.StringTable().Len() - 1)
}

func (b builder) attribute(to pcommon.Int32Slice, key, value string) {
	attribute := b.dictionary.AttributeTable().AppendEmpty()
	attribute.SetKeyStrindex(b.text(key))
	attribute.Value().SetStr(value)
	to.Append(int32(b.dictionary.AttributeTable().Len() - 1))
}

func (b builder) mapping(file string) int32 {
	b.dictionary.MappingTable().AppendEmpty().SetFilenameStrindex(b.text(file))
	return int32(b.dictionary.MappingTable().Len() - 1)
}

func (b builder) location(kind, function string, mapping int32) int32 {
	location := b.dictionary.LocationTable().AppendEmpty()
	location.SetMappingIndex(mapping)
	b.attribute(location.AttributeIndices(), frameType, kind)
	if function != "" {
		b.dictionary.FunctionTable().AppendEmpty().SetNameStrindex(b.text(function))
		location.Lines().AppendEmpty().SetFunctionIndex(int32(b.dictionary.FunctionTable().Len() - 1))
	}
	return int32(b.dictionary.LocationTable().Len() - 1)
}

// sample of a thread, leaf first.
func (b builder) sample(thread string, times int, locations ...int32) {
	b.dictionary.StackTable().AppendEmpty().LocationIndices().Append(locations...)
	profile := b.ResourceProfiles().AppendEmpty().ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	sample := profile.Samples().AppendEmpty()
	sample.SetStackIndex(int32(b.dictionary.StackTable().Len() - 1))
	sample.TimestampsUnixNano().Append(make([]uint64, times)...)
	b.attribute(sample.AttributeIndices(), threadName, thread)
}

func TestStacksAreFoldedRootFirstAndAddedUp(t *testing.T) {
	b := newBuilder()
	kernel, frame, unnamed := b.location("kernel", "do_read", 0), b.location("go", "main.main", 0), b.location("native", "", b.mapping("libx.so"))
	b.sample("a;b", 2, kernel, frame, unnamed)
	b.sample("a;b", 3, kernel, frame, unnamed)
	b.sample("c", 1, b.location("native", "", 0))
	stacks := newFolder(newSymbolizer(fstest.MapFS{}))
	stacks.add(pprofileotlp.NewExportRequestFromProfiles(b.Profiles))
	var out bytes.Buffer
	if err := stacks.print(&out); err != nil {
		t.Fatal(err)
	}
	if want := "a:b;[libx.so];main.main;do_read_[k] 5\nc;[native] 1\n"; out.String() != want {
		t.Errorf("folded %q, not %q", out.String(), want)
	}
}

func TestRequestsAreReadBackInOrder(t *testing.T) {
	var file bytes.Buffer
	kept := &store{to: &file}
	for _, thread := range []string{"first", "second"} {
		b := newBuilder()
		b.sample(thread, 1, b.location("native", "", 0))
		if err := kept.add(pprofileotlp.NewExportRequestFromProfiles(b.Profiles)); err != nil {
			t.Fatal(err)
		}
	}
	whole := file.Bytes()
	var threads []string
	read := func(request pprofileotlp.ExportRequest) {
		threads = append(threads, request.Profiles().Dictionary().AttributeTable().At(2).Value().Str())
	}
	if err := eachRequest(bytes.NewReader(whole), read); err != nil {
		t.Fatal(err)
	}
	if len(threads) != 2 || threads[0] != "first" || threads[1] != "second" {
		t.Errorf("read %q", threads)
	}
	if err := eachRequest(bytes.NewReader(whole[:len(whole)-9]), func(pprofileotlp.ExportRequest) {}); err == nil {
		t.Error("a file that is cut off is read without an error")
	}
}
