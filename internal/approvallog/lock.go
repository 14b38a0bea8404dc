package approvallog

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/procid"
)

const (
	defaultLockWait = 2 * time.Second
	// The pause between two tries grows from the first to the last, half of it random.
	firstLockPause = 250 * time.Microsecond
	lastLockPause  = 4 * time.Millisecond
	// restampAfter is how long tenures that follow each other bear one time and one nonce. Whom the lock belongs to
	// is told by the process, which the record names all the same: who judges a leftover asks whether that process
	// lives, and who takes one over compares the file and its bytes with what it read, of a process that has ended
	// and has no later tenure. So nothing depends on a record of its own for each tenure but the time that a person
	// is told, which is this much too early at most, and a reader who takes a nonce that stays the same for a holder
	// that does not move: it sees another one in a twentieth of the time that anybody waits.
	restampAfter = 100 * time.Millisecond
)

// appendLock is the lock that all writers of a log share, also those of other implementations: a
// file that exists while somebody appends. The file is put in place with link(2) from a complete
// one that the process keeps beside it, so nobody ever sees an empty lock of ours, also not after
// a power cut.
//
// Before the file, processes of approvald take a kernel lock on a file of its own and let it go
// when they have the lock. Whoever holds it is next: that keeps a busy writer from starving the
// others, and makes sure that only one of them judges a leftover at a time. Nothing depends on it
// but fairness and take-overs: other writers know only the lock's file.
//
// An appendLock serves one goroutine at a time.
type appendLock struct {
	path   string
	wait   time.Duration
	fs     durable.FS
	prober procid.Prober
	prog   string
	logf   func(string, ...any)

	self   lockRecord
	name   string        // of the prepared file
	file   *durable.File // the prepared file
	stat   syscall.Stat_t
	record []byte // what the prepared file holds
	// Where in the record the time and the nonce stand, and when they were made.
	createdAt, nonceAt int
	stamped            time.Time
	found              []byte // room for what is read back
	queue              queue
}

// prepare makes the complete file that acquire links into place, once in the lock's life.
func (l *appendLock) prepare() error {
	if l.file != nil {
		return nil
	}
	self, err := l.prober.Self()
	if err != nil {
		return fmt.Errorf("identify the own process for the append lock: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name the own host for the append lock: %w", err)
	}
	l.self = lockRecord{V: 1, Identity: self, Host: host, Op: "append", Program: l.prog}
	l.sweep()

	var random [8]byte
	crand.Read(random[:])
	name := fmt.Sprintf("%s-%d-%s", l.preparedPrefix(), self.PID, hex.EncodeToString(random[:]))
	file, err := l.fs.OpenFile("lock.prepare", name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	l.name, l.file = name, file
	// Where there are no kernel locks, the record does not promise one.
	l.self.Flock = keepLocked(l.file.File)
	if err = l.compose(); err == nil {
		err = l.stamp()
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		if err = retried(func() error { return syscall.Fstat(int(l.file.Fd()), &l.stat) }); err != nil {
			err = &fs.PathError{Op: "stat", Path: l.name, Err: err}
		}
	}
	if err != nil {
		l.discard()
	}
	return err
}

// compose makes the record that stamp completes, once for all tenures: only its time and its nonce change.
func (l *appendLock) compose() error {
	l.self.Created, l.self.Nonce = TimeLayout, "0123456789abcdef"
	record, err := json.Marshal(l.self)
	if err != nil {
		return err
	}
	// No text inside a JSON string looks like the name of a member: its quotes are escaped.
	const created, nonce = `"created":"`, `"nonce":"`
	l.createdAt = bytes.Index(record, []byte(created)) + len(created)
	l.nonceAt = bytes.Index(record, []byte(nonce)) + len(nonce)
	l.record, l.stamped = append(record, '\n'), time.Time{}
	return nil
}

// retried repeats a system call that a signal interrupted.
func retried(call func() error) error {
	for {
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

// keepLocked locks the prepared file for the rest of its life. One who sweeps may be looking at it for
// a moment.
func keepLocked(f *os.File) bool {
	for range 5 {
		if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK {
			return err == nil
		}
		time.Sleep(firstLockPause)
	}
	return false
}

func (l *appendLock) preparedPrefix() string {
	dir, base := filepath.Split(l.path)
	return dir + "." + base
}

// sweep removes the prepared files of processes that were killed.
func (l *appendLock) sweep() {
	names, _ := filepath.Glob(escapeGlob(l.preparedPrefix()) + "-*")
	for _, name := range names {
		left, err := readLeftover(name)
		if err != nil {
			continue
		}
		if dead, _ := left.judge(l.prober, l.self, time.Now()); dead {
			os.Remove(name)
		}
	}
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// stamp writes the record of the coming tenure into the prepared file, unless the one that is there is
// young enough for it ([restampAfter]). Its length never changes, so that a crash leaves this record or an
// older one of the same process, never half of one.
func (l *appendLock) stamp() error {
	now := time.Now()
	if age := now.Sub(l.stamped); age >= 0 && age < restampAfter {
		return nil
	}
	var random [8]byte
	crand.Read(random[:])
	copy(l.record[l.createdAt:l.createdAt+len(TimeLayout)], now.UTC().Format(TimeLayout))
	hex.Encode(l.record[l.nonceAt:], random[:])
	if err := l.fs.Before("lock.stamp", l.name); err != nil {
		return err
	}
	if _, err := l.file.WriteAt(l.record, 0); err != nil {
		return err
	}
	l.stamped = now
	return nil
}

func (l *appendLock) discard() {
	if l.file != nil {
		os.Remove(l.name)
		l.file.Close()
		l.file = nil
	}
}

// close removes what the lock keeps beside the log, except the queue's file, which others use.
func (l *appendLock) close() {
	l.discard()
	l.queue.close()
}

// acquire takes the lock. After the whole wait it fails with a [*LockedError], unless the holder is
// found to be gone: then it takes the lock over, and before the end of the wait when the kernel says so.
func (l *appendLock) acquire(ctx context.Context) error {
	if err := l.prepare(); err != nil {
		return fmt.Errorf("prepare append lock: %w", err)
	}
	if err := l.stamp(); err != nil {
		l.discard()
		return fmt.Errorf("prepare append lock: %w", err)
	}
	deadline := time.Now().Add(l.wait)
	// Who stands behind the next in line waits as long again: the one before may need its whole
	// wait to find that the holder is gone.
	queued, err := l.queue.enter(ctx, time.Until(deadline)+l.wait)
	if errors.Is(err, errQueueFull) {
		return &LockedError{Path: l.path, Holder: l.describe()}
	}
	if err != nil {
		return err
	}
	if queued {
		defer l.queue.leave()
	}
	pause := firstLockPause
	for {
		err := l.link()
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return err
		}
		if l.held() == nil {
			return nil // an earlier release of this very lock failed
		}
		if !time.Now().Before(deadline) || pause == lastLockPause && l.abandoned() {
			return l.takeOver(queued)
		}
		if err := sleep(ctx, jitter(pause)); err != nil {
			return err
		}
		pause = min(2*pause, lastLockPause)
	}
}

// link puts the prepared file in the lock's place.
func (l *appendLock) link() error {
	if err := l.fs.Before("lock.link", l.path); err != nil {
		return err
	}
	err := os.Link(l.name, l.path)
	if errors.Is(err, fs.ErrNotExist) {
		l.discard() // swept or removed: the next call prepares another
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("take append lock %s: %w", l.path, err)
	}
	return err
}

// abandoned reports whether the kernel says that the holder is gone. There is no need to wait then.
func (l *appendLock) abandoned() bool {
	left, err := readLeftover(l.path)
	return err == nil && left.abandoned(l.self.BootID)
}

// describe names the present holder.
func (l *appendLock) describe() string {
	left, err := readLeftover(l.path)
	if err != nil {
		return fmt.Sprintf("a writer that cannot be named (%v)", err)
	}
	_, holder := left.judge(l.prober, l.self, time.Now())
	return holder
}

// takeOver replaces the lock of a holder that is certainly gone by the own one.
//
// The claim makes sure that only one taker acts on what was read: its name is made from the
// leftover's inode and bytes, and link(2) succeeds once. Between takers of approvald the kernel
// lock already does that, so a claim that exists is one whose maker died, and is used again.
func (l *appendLock) takeOver(queued bool) error {
	left, err := readLeftover(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		// Released at the last moment.
		if err := l.link(); err == nil || !errors.Is(err, fs.ErrExist) {
			return err
		}
		return &LockedError{Path: l.path, Holder: l.describe()}
	}
	if err != nil {
		return &LockedError{Path: l.path, Holder: fmt.Sprintf("a writer that cannot be named (%v)", err)}
	}
	dead, holder := left.judge(l.prober, l.self, time.Now())
	if !dead {
		return &LockedError{Path: l.path, Holder: holder}
	}
	claim := l.path + ".claim-" + left.fingerprint()
	if err := l.fs.Before("lock.claim", claim); err != nil {
		return err
	}
	err = os.Link(l.path, claim)
	if err != nil && !(errors.Is(err, fs.ErrExist) && queued) {
		return &LockedError{Path: l.path, Holder: holder + fmt.Sprintf("; it could not be claimed: %v", err)}
	}
	defer os.Remove(claim)

	again, err := readLeftover(l.path)
	if err != nil || !left.same(again) {
		return &LockedError{Path: l.path, Holder: l.describe()}
	}
	own := durable.TempName(l.path)
	if err := os.Link(l.name, own); err != nil {
		return fmt.Errorf("take append lock %s over: %w", l.path, err)
	}
	if err = l.fs.Before("lock.takeover", l.path); err == nil {
		err = os.Rename(own, l.path)
	}
	if err != nil {
		os.Remove(own)
		return fmt.Errorf("take append lock %s over: %w", l.path, err)
	}
	l.logf("took append lock %s over from %s", l.path, holder)
	return nil
}

// fingerprint names this very file with these very bytes.
func (l leftover) fingerprint() string {
	h := sha256.New()
	if stat, ok := l.info.Sys().(*syscall.Stat_t); ok {
		fmt.Fprintf(h, "%d:%d\n", stat.Dev, stat.Ino)
	}
	h.Write(l.bytes)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// held reports whether the lock's file is still the own one.
func (l *appendLock) held() error {
	var there syscall.Stat_t
	if err := retried(func() error { return syscall.Lstat(l.path, &there) }); err != nil {
		return fmt.Errorf("append lock %s was taken away: %w", l.path, err)
	}
	if there.Dev != l.stat.Dev || there.Ino != l.stat.Ino {
		return fmt.Errorf("append lock %s was replaced by another writer", l.path)
	}
	return nil
}

// release removes the lock's file when it is the own one with the own bytes, and says why when it
// is not: then two writers may have been at work.
func (l *appendLock) release() error {
	if err := l.held(); err != nil {
		return err
	}
	l.found = append(l.found[:0], l.record...) // as long as what is read
	if _, err := l.file.ReadAt(l.found, 0); err != nil || !bytes.Equal(l.found, l.record) {
		l.stamped = time.Time{} // the next tenure puts its own there again
		return fmt.Errorf("append lock %s does not hold the own record any more; it was left alone", l.path)
	}
	if err := l.fs.Before("lock.unlink", l.path); err != nil {
		return err
	}
	return os.Remove(l.path)
}

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
