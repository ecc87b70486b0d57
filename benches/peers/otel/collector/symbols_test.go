// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"os"
	"path/filepath"
	"testing"
)

const library = "libc.so.6"

// The C library of this machine, opened; skips where it has none in a known folder.
func openLibrary(t *testing.T) *elf.File {
	for _, folder := range libraryFolders {
		if object, err := elf.Open(filepath.Join("/", folder, library)); err == nil {
			t.Cleanup(func() { object.Close() })
			return object
		}
	}
	t.Skip(library, " is in none of ", libraryFolders)
	return nil
}

func addressOf(t *testing.T, object *elf.File, name string) uint64 {
	symbols, err := object.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range symbols {
		if symbol.Name == name {
			return symbol.Value
		}
	}
	t.Fatal(name, " has no symbol")
	return 0
}

func TestAddressesAreNamedByTheSymbolTable(t *testing.T) {
	object := openLibrary(t)
	address, symbols := addressOf(t, object, "qsort"), newSymbolizer(os.DirFS("/"))
	file := objectFile{name: library, buildID: buildIDOf(object)}
	if file.buildID == "" {
		t.Error("no build id of ", library)
	}
	for _, inside := range []uint64{address, address + 1} {
		if name := symbols.nameOf(objectFile{name: library}, inside); name != "qsort" {
			t.Errorf("%#x is %q", inside, name)
		}
	}
	if name := symbols.nameOf(file, address); name == "" {
		t.Error("the file of the right build names nothing")
	}
	file.buildID = "00ff"
	if name := symbols.nameOf(file, address); name != "" {
		t.Errorf("another build's file names %q", name)
	}
	if name := symbols.nameOf(objectFile{name: library}, ^uint64(0)); name != "" {
		t.Errorf("an address outside is %q", name)
	}
}

func TestTheEntryPointIsNamed(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	object, err := elf.Open(executable)
	if err != nil {
		t.Fatal(err)
	}
	defer object.Close()
	for _, function := range newSymbolizer(os.DirFS("/")).functionsOf(executable[1:], "") {
		if function.name == "_start" && function.start == object.Entry {
			return
		}
	}
	t.Error("no _start at the entry point")
}
