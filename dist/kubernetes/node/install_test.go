package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// prefix makes one with a command that writes its arguments into the file that the last one names.
func prefix(t *testing.T, command string) string {
	t.Helper()
	directory := t.TempDir()
	for _, file := range files {
		path := filepath.Join(directory, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		contents, mode := file, os.FileMode(0o644)
		if file == "bin/shunpike" {
			contents, mode = command, 0o755
		}
		if err := os.WriteFile(path, []byte(contents), mode); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func TestFilesAreReplacedNotWrittenTo(t *testing.T) {
	from, to := prefix(t, "#!/bin/sh\necho \"$@\" >\"$6\"\n"), t.TempDir()
	specification := filepath.Join(to, "shunpike.json")
	install := func() {
		arguments := []string{"install", "-from", from, "-to", to, "-cdi", specification, "-socket", "/run/s/broker.sock"}
		if err := run(t.Context(), arguments); err != nil {
			t.Fatal(err)
		}
	}
	install()
	library := filepath.Join(to, "lib/libshunpike.so")
	mapped, err := os.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	if err := os.WriteFile(filepath.Join(from, "lib/libshunpike.so"), []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	install()
	old := make([]byte, 64)
	length, _ := mapped.Read(old)
	if string(old[:length]) != "lib/libshunpike.so" {
		t.Errorf("what a program has mapped has changed: %q", old[:length])
	}
	for path, wanted := range map[string]string{library: "another", specification: "--socket /run/s/broker.sock cdi generate --output " + specification + "\n"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != wanted {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if about, err := os.Stat(filepath.Join(to, "bin/shunpike")); err != nil || about.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", about, err)
	}
	if left, _ := filepath.Glob(filepath.Join(to, "*/.*.new")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAFailureSaysWhat(t *testing.T) {
	from := prefix(t, "#!/bin/sh\nexit 3\n")
	err := run(t.Context(), []string{"install", "-from", from, "-to", t.TempDir(), "-cdi", "/nowhere/x.json"})
	if err == nil || !strings.Contains(err.Error(), "/nowhere/x.json") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(from, "lib/libshunpike.so")); err != nil {
		t.Fatal(err)
	}
	err = run(t.Context(), []string{"install", "-from", from, "-to", t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "cannot install lib/libshunpike.so") {
		t.Errorf("%v", err)
	}
}
