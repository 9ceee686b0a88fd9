package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// What containers of the node are given, below a prefix.
var files = []string{
	"bin/shunpike",
	"lib/libshunpike.so",
	"lib/shunpike/libshunpike-entry.so",
	"lib/shunpike/container.preload",
}

// What is put onto a node, and where.
type installation struct {
	from, to, specification, socket string
}

// install copies the files, and then has the copied command write the specification, which names them where they are.
func (it installation) install(ctx context.Context) error {
	for _, file := range files {
		if err := replace(filepath.Join(it.from, file), filepath.Join(it.to, file)); err != nil {
			return fmt.Errorf("cannot install %s below %s: %w", file, it.to, err)
		}
	}
	command := exec.CommandContext(ctx, filepath.Join(it.to, "bin/shunpike"), "--socket", it.socket, "cdi", "generate", "--output", it.specification)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("cannot write the specification %s: 'shunpike cdi generate': %w", it.specification, err)
	}
	return nil
}

// replace copies a file. Programs of the node run the one that was there: it is not written to, the new one takes its name when it is whole and
// on disk.
func replace(from, to string) error {
	directory, name := filepath.Split(to)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	about, err := source.Stat()
	if err != nil {
		return err
	}
	part := filepath.Join(directory, "."+name+".new")
	if err := write(source, part, about.Mode().Perm()); err != nil {
		os.Remove(part)
		return err
	}
	return os.Rename(part, to)
}

// write makes a file of these contents and this mode.
func write(source io.Reader, path string, mode os.FileMode) error {
	target, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer target.Close()
	if _, err := io.Copy(target, source); err != nil {
		return err
	}
	// Whatever umask there is, and whatever an earlier one left.
	if err := target.Chmod(mode); err != nil {
		return err
	}
	if err := target.Sync(); err != nil {
		return err
	}
	return target.Close()
}
