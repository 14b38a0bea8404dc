package approvallog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

const (
	// maxLockRecord bounds what is read of a lock file.
	maxLockRecord = 4 << 10
	// emptyLockAge is the age at which an empty lock file, which only an older writer leaves behind,
	// is taken for abandoned.
	emptyLockAge = 10 * time.Minute
)

// lockRecord is the content of the append lock's file, one line of JSON.
type lockRecord struct {
	V int `json:"v"`
	procid.Identity
	Host    string `json:"host"`
	Created string `json:"created"`
	Op      string `json:"op"`
	Nonce   string `json:"nonce"` // 16 hex digits
	Program string `json:"program,omitempty"`
	// Flock: the holder keeps a kernel lock on this very file for as long as it lives.
	Flock bool `json:"flock,omitempty"`
}

// parseLockRecord reads what any writer of the format may have left in its lock. It accepts members
// that it does not know and misses none that it can do without: what a record does not say makes
// its holder look alive, never dead.
func parseLockRecord(b []byte) (lockRecord, error) {
	var loose struct {
		PID     int64           `json:"pid"`
		Boot    string          `json:"boot"`
		PIDNS   json.RawMessage `json:"pidns"`
		TimeNS  json.RawMessage `json:"timens"`
		Start   json.RawMessage `json:"start"`
		Host    string          `json:"host"`
		Created json.RawMessage `json:"created"`
		Op      string          `json:"op"`
		Flock   json.RawMessage `json:"flock"`
	}
	if len(b) > maxLockRecord {
		return lockRecord{}, fmt.Errorf("longer than %d bytes", maxLockRecord)
	}
	if err := checkStrict(b); err != nil {
		return lockRecord{}, err
	}
	if err := json.Unmarshal(b, &loose); err != nil {
		return lockRecord{}, fmt.Errorf("not a lock record: %w", err)
	}
	if loose.PID < 1 || loose.PID > 1<<30 {
		return lockRecord{}, fmt.Errorf("names no process")
	}
	start, _ := strconv.ParseUint(text(loose.Start), 10, 64) // 0 is unknown
	return lockRecord{
		Identity: procid.Identity{
			BootID: loose.Boot, PID: int(loose.PID), StartTicks: start,
			PIDNS: namespace("pid", text(loose.PIDNS)), TimeNS: namespace("time", text(loose.TimeNS)),
		},
		Host: loose.Host, Created: text(loose.Created), Op: loose.Op, Flock: string(loose.Flock) == "true",
	}, nil
}

// text gives a value that some writers write as a string and others as a number.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if string(raw) == "null" {
		return ""
	}
	return string(bytes.TrimSpace(raw))
}

// namespace completes a bare inode number to the form of the links in /proc/PID/ns.
func namespace(kind, s string) string {
	if _, err := strconv.ParseUint(s, 10, 64); err == nil {
		return kind + ":[" + s + "]"
	}
	return s
}

// leftover is a lock file as it was read: what a take-over must find unchanged.
type leftover struct {
	info  os.FileInfo
	bytes []byte
	// unlocked: nobody has a kernel lock on it. That tells something of a holder that keeps one.
	unlocked bool
}

// readLeftover reads the lock file at path.
func readLeftover(path string) (leftover, error) {
	f, err := os.Open(path)
	if err != nil {
		return leftover{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return leftover{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxLockRecord+1))
	// After the bytes: a holder locks its file before it writes that it did. Shared, so that two
	// who ask do not meet each other.
	return leftover{info: info, bytes: b, unlocked: flock(f, syscall.LOCK_SH|syscall.LOCK_NB) == nil}, err
}

// abandoned reports whether the kernel says that the holder is gone: it kept a lock on this file,
// on this machine since it was started, and the lock is free. That holds in whatever pid namespace
// the holder ran and by whatever name its container called the host.
func (l leftover) abandoned(boot string) bool {
	record, err := parseLockRecord(l.bytes)
	return err == nil && record.Flock && record.BootID != "" && record.BootID == boot && l.unlocked
}

// same reports whether the other one is the same file with the same bytes.
func (l leftover) same(other leftover) bool {
	return os.SameFile(l.info, other.info) && bytes.Equal(l.bytes, other.bytes)
}

// judge says whether the lock's holder is certainly gone, and who it is or was, in words.
func (l leftover) judge(prober procid.Prober, self lockRecord, now time.Time) (dead bool, holder string) {
	if len(l.bytes) == 0 {
		age := now.Sub(l.info.ModTime()).Truncate(time.Second)
		if age >= emptyLockAge {
			return true, fmt.Sprintf("nobody: the file is empty and %v old", age)
		}
		return false, fmt.Sprintf("an unnamed writer (the file is empty and %v old; from %v on it is taken for abandoned)", age, emptyLockAge)
	}
	record, err := parseLockRecord(l.bytes)
	if err != nil {
		return false, fmt.Sprintf("an unknown writer (its record cannot be read: %v)", err)
	}
	holder = fmt.Sprintf("process %d", record.PID)
	if record.Host != "" {
		holder += fmt.Sprintf(" on host %q", record.Host)
	}
	if record.Created != "" {
		holder += fmt.Sprintf(" since %q", record.Created)
	}
	if l.abandoned(self.BootID) {
		return true, holder + " (it has ended: the kernel lock on its file is free)"
	}
	if record.Host != "" && record.Host != self.Host {
		return false, holder + " (another host, whose processes cannot be seen)"
	}
	verdict, why := prober.Judge(record.Identity)
	return verdict.Dead(), holder + " (" + why + ")"
}
