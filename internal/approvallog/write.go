package approvallog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// maxKeptText bounds, in bytes, the room for what is written that a Log keeps between two appends.
const maxKeptText = 64 << 10

// readyToWrite makes sure, once in a tenure of the append lock, that the lock is still held and that
// the file ends with the record that was read last, and takes a torn tail off.
func (l *Log) readyToWrite() error {
	if err := l.lock.held(); err != nil {
		return err
	}
	if err := l.checkEnd(); err != nil {
		return err
	}
	return l.quarantine()
}

// write puts the records of one decider behind the log's end with one write. Nothing of them is in
// the file when it fails without poisoning the handle. Called inside the append lock and l.mu.
func (l *Log) write(records []Record) error {
	text := l.text[:0]
	if l.at.noLF {
		text = append(text, '\n')
	}
	before := l.at
	end := before.offset + int64(len(text))
	for i := range records {
		r := &records[i]
		r.offset = before.offset + int64(len(text))
		if (r.Seq-1)%indexStep == 0 {
			at := place{offset: r.offset, line: before.line + int64(r.Seq-before.head.Seq) - 1, head: Head{Seq: r.Seq - 1, Hash: r.Prev}}
			l.index = append(l.index, at)
		}
		text = append(append(text, r.Raw...), '\n')
	}
	if cap(text) <= maxKeptText {
		l.text = text
	}
	n, err := l.appender.Extend(text, before.offset)
	if err != nil {
		l.index = slices.DeleteFunc(l.index, func(p place) bool { return p.offset >= end })
		return l.rollback(before.offset, n, err)
	}
	last := records[len(records)-1]
	l.at = place{
		offset: before.offset + int64(len(text)), line: before.line + int64(len(records)),
		head: last.Head(), lastLine: append(before.lastLine[:0], last.Raw...),
	}
	return nil
}

// commit makes what the tenure has written durable. A file of another size than was written means
// that somebody else has written too.
func (l *Log) commit() error {
	size, err := l.size()
	if err == nil && size != l.at.offset {
		err = fmt.Errorf("the file has %d bytes instead of %d: a writer without the lock is at work", size, l.at.offset)
	}
	if err != nil {
		return l.poisoned("check after a write", err)
	}
	began := time.Now()
	err = l.appender.Sync()
	l.opts.took(OpSync, began)
	if err != nil {
		return l.poisoned("fsync", err)
	}
	return nil
}

// checkEnd makes sure that the last record still stands where it was read, so that nothing is ever
// chained to bytes that are gone.
func (l *Log) checkEnd() error {
	last := l.at.lastLine
	if len(last) == 0 {
		return nil
	}
	size := len(last)
	if !l.at.noLF {
		size++
	}
	got := slices.Grow(l.text[:0], size)[:size]
	clear(got) // what a short read does not fill must not look like what was there before
	if err := readFull(l.file, got, l.at.offset-int64(size)); err != nil && err != io.ErrUnexpectedEOF {
		return err
	}
	if !bytes.Equal(got[:len(last)], last) || !l.at.noLF && got[len(last)] != '\n' {
		return l.damaged(&CorruptError{
			Path: l.opts.Path, Reason: ReasonLogRewritten, Line: l.at.line, Offset: l.at.offset - int64(size), Seq: l.at.head.Seq,
			Detail: "the last record is not the one that was read before",
		})
	}
	return nil
}

// rollback takes the part of an append that a full disk let through off the end again. That is safe
// because the lock is held, nothing stands behind the own bytes, and nobody was answered. Any other
// error, and a rollback that fails, poisons the handle: a failing disk is not asked twice.
func (l *Log) rollback(end int64, wrote int, cause error) error {
	if !errors.Is(cause, syscall.ENOSPC) && !errors.Is(cause, syscall.EDQUOT) && !errors.Is(cause, syscall.EFBIG) {
		return l.poisoned("write", cause)
	}
	if err := l.lock.held(); err != nil {
		return l.poisoned("write", errors.Join(cause, err))
	}
	size, err := l.size()
	if err == nil && size != end+int64(wrote) {
		err = fmt.Errorf("the file has %d bytes, %d were expected", size, end+int64(wrote))
	}
	if err == nil && wrote > 0 {
		err = l.appender.Truncate(end)
		if err == nil {
			err = l.appender.Sync()
		}
	}
	if err != nil {
		return l.poisoned("write", errors.Join(cause, err))
	}
	return fmt.Errorf("append to %s: nothing was recorded: %w", l.opts.Path, cause)
}

func (l *Log) size() (int64, error) {
	info, err := l.appender.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// quarantine moves the bytes behind the last record into a file of their own: first the copy, then
// the cut. A crash between the two leaves both, and the next append finds the copy made.
func (l *Log) quarantine() error {
	if l.tail == nil {
		return nil
	}
	torn := make([]byte, l.tail.size)
	if err := readFull(l.file, torn, l.tail.offset); err != nil {
		return fmt.Errorf("read the torn end of %s: %w", l.opts.Path, err)
	}
	dir := filepath.Join(filepath.Dir(l.opts.Path), "quarantine")
	if err := l.opts.FS.MkdirAll("quarantine", dir, 0o700); err != nil {
		return fmt.Errorf("quarantine the torn end of %s: %w", l.opts.Path, err)
	}
	name, err := l.keepTorn(dir, torn)
	if err != nil {
		return fmt.Errorf("quarantine the torn end of %s: %w", l.opts.Path, err)
	}
	if err := l.opts.FS.Adopt("quarantine", l.appender.File).Truncate(l.tail.offset); err != nil {
		return fmt.Errorf("cut the torn end of %s: %w", l.opts.Path, err)
	}
	if err := l.appender.Sync(); err != nil {
		return l.poisoned("fsync", err)
	}
	l.opts.Logf("log %s ended in a torn record of %d bytes at byte %d; they are kept in %s", l.opts.Path, l.tail.size, l.tail.offset, name)
	l.tail = nil
	return nil
}

// keepTorn stores the torn bytes and returns the file's path. Bytes that are there already, from a
// try that did not get to the cut, are not stored again.
func (l *Log) keepTorn(dir string, torn []byte) (string, error) {
	sum := sha256.Sum256(torn)
	prefix := hex.EncodeToString(sum[:8])
	kept, err := filepath.Glob(escapeGlob(dir) + "/*-" + prefix)
	if err != nil {
		return "", err
	}
	for _, name := range kept {
		if b, err := os.ReadFile(name); err == nil && bytes.Equal(b, torn) {
			return name, nil
		}
	}
	name := filepath.Join(dir, l.opts.Now().UTC().Format("20060102T150405.000Z")+"-"+prefix)
	err = l.opts.FS.CreateExclusive("quarantine", name, torn, 0o600)
	if errors.Is(err, fs.ErrExist) {
		name += "-" + time.Now().UTC().Format("150405.000000000")
		err = l.opts.FS.CreateExclusive("quarantine", name, torn, 0o600)
	}
	return name, err
}
