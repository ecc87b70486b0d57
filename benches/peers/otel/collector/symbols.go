// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
)

// The folders of libraries, which the profiler does not report.
var libraryFolders = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib"}

// objectFile is a mapped file as the profiler reports it: its name without a folder and its GNU build id. `executable` is
// the full path of the process' program.
type objectFile struct {
	name, buildID, executable string
}

// function is one symbol of an ELF file, with addresses of that file.
type function struct {
	start, end uint64
	name       string
}

// symbolizer names addresses by the symbol tables of the files on this machine, debug files of the same build among
// them. The profiler sends addresses only: naming them is its backend's work.
type symbolizer struct {
	root  fs.FS
	known map[objectFile][]function
}

func newSymbolizer(root fs.FS) *symbolizer {
	return &symbolizer{root: root, known: make(map[objectFile][]function)}
}

// nameOf is "" where no symbol covers the address.
func (s *symbolizer) nameOf(file objectFile, address uint64) string {
	functions, isKnown := s.known[file]
	if !isKnown {
		functions = s.read(file)
		s.known[file] = functions
	}
	next := sort.Search(len(functions), func(i int) bool { return functions[i].start > address })
	if next == 0 || address >= functions[next-1].end {
		return ""
	}
	return functions[next-1].name
}

// read takes every function that the file itself and its debug file name, sorted by address. The entry point is
// named in a stripped program too.
func (s *symbolizer) read(file objectFile) []function {
	var found []function
	for _, candidate := range candidates(file) {
		found = append(found, s.functionsOf(candidate, file.buildID)...)
	}
	// Where two begin at one address, the longer one comes last, and is found.
	sort.SliceStable(found, func(i, j int) bool {
		return found[i].start < found[j].start || found[i].start == found[j].start && found[i].end < found[j].end
	})
	return found
}

func candidates(file objectFile) []string {
	var paths []string
	if len(file.buildID) > 2 {
		paths = append(paths, path.Join("usr/lib/debug/.build-id", file.buildID[:2], file.buildID[2:]+".debug"))
	}
	if path.Base(file.executable) == file.name {
		return append(paths, strings.TrimPrefix(file.executable, "/"))
	}
	for _, folder := range libraryFolders {
		paths = append(paths, path.Join(folder, file.name))
	}
	return paths
}

// functionsOf is empty for a file that is not there or is another build.
func (s *symbolizer) functionsOf(path, buildID string) []function {
	content, err := fs.ReadFile(s.root, path)
	if err != nil {
		return nil
	}
	object, err := elf.NewFile(bytes.NewReader(content))
	if err != nil || buildID != "" && buildIDOf(object) != buildID {
		return nil
	}
	static, _ := object.Symbols()
	dynamic, _ := object.DynamicSymbols()
	found := []function{}
	if object.Entry != 0 {
		// As long as any of them is.
		found = append(found, function{object.Entry, object.Entry + 64, "_start"})
	}
	for _, symbol := range append(static, dynamic...) {
		if elf.ST_TYPE(symbol.Info) == elf.STT_FUNC && symbol.Size > 0 && symbol.Section != elf.SHN_UNDEF {
			found = append(found, function{symbol.Value, symbol.Value + symbol.Size, symbol.Name})
		}
	}
	return found
}

// buildIDOf reads the note of that name, in hexadecimal.
func buildIDOf(object *elf.File) string {
	section := object.Section(".note.gnu.build-id")
	if section == nil {
		return ""
	}
	note := section.Open()
	var header struct{ NameSize, IDSize, Kind uint32 }
	if binary.Read(note, object.ByteOrder, &header) != nil || header.IDSize > 64 {
		return ""
	}
	id := make([]byte, header.IDSize)
	if _, err := note.Seek(int64(12+(header.NameSize+3)/4*4), io.SeekStart); err != nil {
		return ""
	}
	if _, err := io.ReadFull(note, id); err != nil {
		return ""
	}
	return hex.EncodeToString(id)
}
