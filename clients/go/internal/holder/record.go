//go:build unix

package holder

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Dir is a directory that is opened once: K29 (one directory per acquisition).
type Dir struct {
	*os.Root
	IsLocal bool
	Dev     uint64
}

// OpenDir opens a directory.
func OpenDir(path string) (*Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	opened, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	defer opened.Close()
	isLocal, dev, err := Place(opened)
	if err != nil {
		root.Close()
		return nil, err
	}
	return &Dir{Root: root, IsLocal: isLocal, Dev: dev}, nil
}

// ErrNotALock reports a directory, symlink, FIFO or other file that is no lock record.
var ErrNotALock = errors.New("it is not a regular file")

// Record is an open record. Its file stays open until the end of a removal, so that its inode number
// cannot be used again: K22 (keep the judged file open).
type Record struct {
	File  *os.File
	Bytes []byte // one more than the limit if the file is larger
	limit int64
	name  string
}

// Open opens the record under a name; nil without an error if there is none. It never follows a symlink
// at the name and never blocks: K28 (open a record).
func (d *Dir) Open(name string, limit int64) (*Record, error) {
	info, err := d.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, ErrNotALock
	}
	file, err := d.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err == nil && !opened.Mode().IsRegular() {
		err = ErrNotALock
	}
	var read []byte
	if err == nil {
		read, err = readAll(file, limit)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &Record{File: file, Bytes: read, limit: limit, name: name}, nil
}

func readAll(file *os.File, limit int64) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(file, 0, limit+1))
}

// Close closes the record, and with it the flock.
func (r *Record) Close() { _ = r.File.Close() }

// LeadsTo returns whether the name is this open file.
func (d *Dir) LeadsTo(name string, file *os.File) (bool, error) {
	info, err := d.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	opened, err := file.Stat()
	return err == nil && os.SameFile(info, opened), err
}

// Remove removes a judged record if it is unchanged and no process has its flock. It returns whether it
// was removed: K24 (lock before removal) to K26 (rename, compare, then unlink).
func (d *Dir) Remove(r *Record) (bool, error) {
	isLocked, err := TryFlock(r.File)
	if err != nil || !isLocked {
		return false, err
	}
	now, err := readAll(r.File, r.limit)
	if err != nil || !bytes.Equal(now, r.Bytes) {
		return false, err
	}
	if same, err := d.LeadsTo(r.name, r.File); err != nil || !same {
		return false, err
	}
	return d.takeAway(r.name, r.File)
}

// takeAway renames the file to a private name, compares, and only then unlinks it: programs that take no
// flock may have put another file there.
func (d *Dir) takeAway(name string, file *os.File) (bool, error) {
	// The name may be in a directory below; both names are in the same one.
	aside := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".dead-"+Suffix())
	if err := d.Rename(name, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, fmt.Errorf("the lock cannot be removed: %w", err)
	}
	same, err := d.LeadsTo(aside, file)
	if err != nil {
		return false, err
	}
	if same {
		err := d.Root.Remove(aside)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err == nil, err
	}
	if err := d.Link(aside, name); err != nil {
		kept := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".kept-"+Suffix())
		return false, errors.Join(fmt.Errorf("a live lock was displaced and another took its place; the displaced record is kept as %s: %w", kept, err), d.Rename(aside, kept))
	}
	return false, d.Root.Remove(aside)
}

// TakeOwn removes the own record, whose flock this process holds.
func (d *Dir) TakeOwn(name string, file *os.File) (bool, error) {
	if same, err := d.LeadsTo(name, file); err != nil || !same {
		return false, err
	}
	return d.takeAway(name, file)
}

// Publish writes a record and gives it its name in one step. It returns nil without an error if the name
// is taken: K17 (publish in one step), K18 (flock before the name).
func (d *Dir) Publish(name string, content []byte, mode fs.FileMode) (*os.File, error) {
	private := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".tenure-"+Suffix())
	file, err := d.OpenFile(private, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, mode)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*os.File, error) {
		_ = d.Root.Remove(private)
		file.Close()
		return nil, err
	}
	if _, err := file.Write(content); err != nil {
		return fail(err)
	}
	if err := file.Sync(); err != nil {
		return fail(err)
	}
	if isLocked, err := TryFlock(file); err != nil || !isLocked {
		return fail(errors.Join(errors.New("the new record cannot be locked"), err))
	}
	linkErr := d.Link(private, name)
	// Over a network the result of link may be wrong: the names decide.
	same, err := d.LeadsTo(name, file)
	if err != nil {
		return fail(err)
	}
	if !same {
		if linkErr == nil || errors.Is(linkErr, fs.ErrExist) {
			return fail(nil)
		}
		return fail(linkErr)
	}
	if err := d.Root.Remove(private); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return file, nil
}
