package lease

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/procid"
)

// sectionEntry is the content of telegram-transport.lock.reclaim: who is
// taking over. Other implementations know pid, nonce and time only.
type sectionEntry struct {
	PID   int    `json:"pid"`
	Nonce string `json:"nonce"`
	Time  int64  `json:"time"`
	// Identity is approvald's own: it tells the process from a later one.
	Identity *procid.Identity `json:"identity,omitempty"`
	// Lock is the device and inode of the kernel lock under which the entry was
	// made. Whoever holds that lock now knows that the entry's process does not.
	Lock string `json:"lock,omitempty"`
}

// section is the take-over section, entered by this process.
type section struct {
	path string
	data []byte
}

// errSectionBusy: somebody else is taking over; come round again.
var errSectionBusy = errors.New("a take-over is under way")

// enterSection makes the section file, so that one process at a time replaces
// a record. A dead process's entry is evicted, and that is reported; age alone
// never evicts, and an unreadable entry means to wait.
func (t *taker) enterSection(k *kernelLock) (*section, error) {
	identity := t.self
	entry, err := json.Marshal(sectionEntry{
		PID: t.self.PID, Nonce: t.nonce, Time: t.now().UnixMilli(),
		Identity: &identity, Lock: lockName(k.id),
	})
	if err != nil {
		return nil, err
	}
	for range 2 { // the second time after an eviction
		err := t.createSection(entry)
		if err == nil {
			return &section{path: t.sectionPath, data: entry}, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, unavailable(t.sectionPath, "the take-over section cannot be made", hintFor(err), err)
		}
		if !t.evictDead(k) {
			return nil, errSectionBusy
		}
	}
	return nil, errSectionBusy
}

// createSection puts the whole entry in place at once. Its bytes are synced, so
// that a power failure cannot leave an entry that nobody can read and everybody
// waits for; its name need not survive one.
func (t *taker) createSection(entry []byte) error {
	temp := durable.TempName(t.sectionPath)
	defer os.Remove(temp)
	if err := t.writeTemp("lease.section", temp, entry); err != nil {
		return err
	}
	if err := t.fs.Before("lease.section.link", t.sectionPath); err != nil {
		return err
	}
	return os.Link(temp, t.sectionPath)
}

// evictDead removes the section of a process that has certainly ended.
func (t *taker) evictDead(k *kernelLock) bool {
	data, err := readSmall(t.sectionPath)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	var entry sectionEntry
	if json.Unmarshal(data, &entry) != nil || entry.PID < 1 {
		return false
	}
	dead, why := t.sectionDead(entry, entry.Lock == lockName(k.id))
	if !dead {
		return false
	}
	if removed, err := removeExact(t.sectionPath, data); err != nil || !removed {
		return false
	}
	t.report(Event{Kind: SectionEvicted, Path: t.sectionPath,
		Text: fmt.Sprintf("removed the take-over section of pid %d: %s; %s", entry.PID, why, t.sectionPath)})
	return true
}

// sectionDead says whether the entry's process has certainly ended, and why.
// freeLock: the kernel lock under which the entry was made is not that process's.
func (t *taker) sectionDead(entry sectionEntry, freeLock bool) (dead bool, why string) {
	if freeLock {
		return true, "the kernel lock under which it was made is free"
	}
	if entry.Identity != nil {
		v, why := t.prober.Judge(*entry.Identity)
		return v.Dead(), why
	}
	// Its time stamp is a wall clock's, and age must not evict.
	v, _, why := t.prober.Look(entry.PID)
	return v.Dead(), why
}

// owned reports whether the section file still is this entry.
func (s *section) owned() bool {
	data, err := readSmall(s.path)
	return err == nil && bytes.Equal(data, s.data)
}

// leave removes the section only while it names this entry.
func (s *section) leave() { removeExact(s.path, s.data) }

func lockName(id fileID) string { return fmt.Sprintf("%d:%d", id.dev, id.ino) }

func readSmall(path string) ([]byte, error) {
	o, err := observe(path)
	if err == nil && !o.present {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return o.data, err
}

// removeExact removes the file at path while it holds exactly data. Looking
// and removing are two steps, so the file is moved aside first and looked at
// again: what came between is put back.
func removeExact(path string, data []byte) (bool, error) {
	now, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !bytes.Equal(now, data) {
		return false, err
	}
	aside := durable.TempName(path)
	if err := os.Rename(path, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, err
	}
	moved, err := readSmall(aside)
	if err == nil && bytes.Equal(moved, data) {
		return true, os.Remove(aside)
	}
	if lerr := os.Link(aside, path); lerr != nil && !errors.Is(lerr, fs.ErrExist) {
		return false, lerr
	}
	return false, os.Remove(aside)
}

// errMoved: the record is not the one that was judged any more.
var errMoved = errors.New("the record changed")

// replace puts data at the record's path in place of exactly old; the path is
// never absent. Files are exchanged and what came back is looked at, because a
// check followed by a rename is two steps: a process that is stopped between
// them would overwrite its successor. ready is asked right before.
func (t *taker) replace(old observed, data []byte, ready func() bool) error {
	temp := durable.TempName(t.recordPath)
	defer os.Remove(temp)
	if err := t.writeTemp("lease.record", temp, data); err != nil {
		return unavailable(t.recordPath, "the record cannot be written", hintFor(err), err)
	}
	if !ready() {
		return errMoved
	}
	if err := t.fs.Before("lease.record.exchange", t.recordPath); err != nil {
		return unavailable(t.recordPath, "the record cannot be replaced", hintFor(err), err)
	}
	err := t.sys.exchange(temp, t.recordPath)
	if errors.Is(err, fs.ErrNotExist) {
		return errMoved
	}
	if noExchange(err) {
		return t.replaceByRename(temp, old)
	}
	if err != nil {
		return unavailable(t.recordPath, "the record cannot be replaced", hintFor(err), err)
	}
	if back, err := observe(temp); err != nil || !back.same(old) {
		// The successor's record came back: return it to its place.
		if err := t.sys.exchange(temp, t.recordPath); err != nil {
			return unavailable(t.recordPath, "another process's record was displaced and cannot be put back",
				"stop both processes and start one", err)
		}
		return errMoved
	}
	return t.syncRecord()
}

func noExchange(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP
}

// replaceByRename serves file systems that cannot exchange two names.
func (t *taker) replaceByRename(temp string, old observed) error {
	if now, err := observe(t.recordPath); err != nil || !now.same(old) {
		return errMoved
	}
	if err := os.Rename(temp, t.recordPath); err != nil {
		return unavailable(t.recordPath, "the record cannot be replaced", hintFor(err), err)
	}
	return t.syncRecord()
}

func (t *taker) writeTemp(op, temp string, data []byte) error {
	f, err := t.fs.OpenFile(op, temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Extend(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (t *taker) syncRecord() error {
	if err := t.fs.SyncDir("lease.record", t.daemonDir); err != nil {
		return unavailable(t.daemonDir, "the record cannot be made durable", hintFor(err), err)
	}
	return nil
}

// reclaimWait is the pause before the loop comes round while somebody else is
// in the section.
const reclaimWait = 50 * time.Millisecond
