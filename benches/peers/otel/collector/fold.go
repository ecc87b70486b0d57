// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"sort"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

// Attributes that the profiler gives to samples, locations and mappings.
const (
	threadName     = "thread.name"
	executablePath = "process.executable.path"
	frameType      = "profile.frame.type"
	buildID        = "process.executable.build_id.gnu"
)

var escaped = strings.NewReplacer(";", ":", "\n", " ")

// folder adds up samples by their stack, root first.
type folder struct {
	symbols *symbolizer
	count   map[string]int64
}

func newFolder(symbols *symbolizer) *folder {
	return &folder{symbols: symbols, count: make(map[string]int64)}
}

func (f *folder) add(request pprofileotlp.ExportRequest) {
	profiles := request.Profiles()
	names := dictionary{profiles.Dictionary()}
	for _, resource := range profiles.ResourceProfiles().All() {
		for _, scope := range resource.ScopeProfiles().All() {
			for _, profile := range scope.Profiles().All() {
				f.addProfile(names, profile)
			}
		}
	}
}

// Each of a sample's timestamps is one time that it was met.
func (f *folder) addProfile(names dictionary, profile pprofile.Profile) {
	for _, sample := range profile.Samples().All() {
		about := names.attributes(sample.AttributeIndices())
		f.count[f.stackOf(names, sample, about)] += int64(sample.TimestampsUnixNano().Len())
	}
}

func (f *folder) stackOf(names dictionary, sample pprofile.Sample, about map[string]string) string {
	frames := []string{escaped.Replace(about[threadName])}
	locations := names.StackTable().At(int(sample.StackIndex())).LocationIndices()
	for i := locations.Len() - 1; i >= 0; i-- {
		location := names.LocationTable().At(int(locations.At(i)))
		frames = append(frames, escaped.Replace(f.nameOf(names, location, about[executablePath])))
	}
	return strings.Join(frames, ";")
}

// nameOf a frame: the profiler's where it knows one, else by its address in its file, as its backend would find it.
func (f *folder) nameOf(names dictionary, location pprofile.Location, executable string) string {
	kind := names.attributes(location.AttributeIndices())[frameType]
	if location.Lines().Len() > 0 {
		function := names.FunctionTable().At(int(location.Lines().At(0).FunctionIndex()))
		name := names.StringTable().At(int(function.NameStrindex()))
		if kind == "kernel" {
			name += "_[k]"
		}
		return name
	}
	mapping := names.MappingTable().At(int(location.MappingIndex()))
	file := names.StringTable().At(int(mapping.FilenameStrindex()))
	if kind == "kernel" {
		return "[" + file + "]_[k]"
	}
	id := names.attributes(mapping.AttributeIndices())[buildID]
	if name := f.symbols.nameOf(objectFile{name: file, buildID: id, executable: executable}, location.Address()); name != "" {
		return name
	}
	if file == "" {
		return "[" + kind + "]"
	}
	return "[" + file + "]"
}

func (f *folder) print(to io.Writer) error {
	stacks := make([]string, 0, len(f.count))
	for stack := range f.count {
		stacks = append(stacks, stack)
	}
	sort.Strings(stacks)
	lines := bufio.NewWriter(to)
	for _, stack := range stacks {
		fmt.Fprintf(lines, "%s %d\n", stack, f.count[stack])
	}
	return lines.Flush()
}

// dictionary is what a request's samples refer to by index.
type dictionary struct{ pprofile.ProfilesDictionary }

func (d dictionary) attributes(indices pcommon.Int32Slice) map[string]string {
	found := make(map[string]string, indices.Len())
	for _, index := range indices.All() {
		attribute := d.AttributeTable().At(int(index))
		found[d.StringTable().At(int(attribute.KeyStrindex()))] = attribute.Value().AsString()
	}
	return found
}
