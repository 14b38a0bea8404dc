package lease

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// This file is another implementation of a gate's transport lease, as its
// lockfile protocol describes it. It shares no code with the package: it knows
// the record, the section and the rules, and no kernel lock.

type foreignRecord struct {
	Version      int    `json:"version"`
	PID          int    `json:"pid"`
	Mode         string `json:"mode"`
	StartedAt    string `json:"started_at"`
	InstanceHome string `json:"instance_home"`
}

type foreignSection struct {
	PID   int    `json:"pid"`
	Nonce string `json:"nonce"`
	Time  int64  `json:"time"`
}

type foreignLease struct {
	lock, section string
	mine          foreignRecord
	nonce         string
}

var errForeignHeld = errors.New("held")

func newForeign(home string) *foreignLease {
	dir := filepath.Join(home, "daemon")
	os.MkdirAll(dir, 0o700)
	lock := filepath.Join(dir, "telegram-transport.lock")
	return &foreignLease{lock: lock, section: lock + ".reclaim", nonce: rand.Text()}
}

// take is rules 1 to 7.
func (f *foreignLease) take(home string) error {
	f.mine = foreignRecord{1, os.Getpid(), "poll", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), home}
	text, err := json.Marshal(f.mine)
	if err != nil {
		return err
	}
	for range 5 {
		err := createExclusive(f.lock, text)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		judged, ok := f.read()
		if ok && foreignAlive(judged.PID) {
			return errForeignHeld
		}
		if f.takeOver(judged, ok, text) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("unavailable")
}

func (f *foreignLease) read() (foreignRecord, bool) {
	var r foreignRecord
	for range 6 {
		text, err := os.ReadFile(f.lock)
		if err == nil && json.Unmarshal(text, &r) == nil && r.PID > 0 {
			return r, true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return r, false
}

func (f *foreignLease) takeOver(judged foreignRecord, readable bool, text []byte) bool {
	entry, _ := json.Marshal(foreignSection{os.Getpid(), f.nonce, time.Now().UnixMilli()})
	if createExclusive(f.section, entry) != nil {
		var other foreignSection
		text, err := os.ReadFile(f.section)
		if err == nil && json.Unmarshal(text, &other) == nil && other.PID > 0 && !foreignAlive(other.PID) {
			os.Remove(f.section)
		}
		return false
	}
	defer func() {
		if f.ownsSection() {
			os.Remove(f.section)
		}
	}()
	now, ok := f.read()
	if ok != readable || now.PID != judged.PID || now.StartedAt != judged.StartedAt {
		return false
	}
	temp := f.lock + "." + f.nonce
	if os.WriteFile(temp, text, 0o600) != nil {
		return false
	}
	if !f.ownsSection() || os.Rename(temp, f.lock) != nil {
		os.Remove(temp)
		return false
	}
	now, ok = f.read()
	return ok && now == f.mine
}

func (f *foreignLease) ownsSection() bool {
	var entry foreignSection
	text, err := os.ReadFile(f.section)
	return err == nil && json.Unmarshal(text, &entry) == nil && entry.PID == os.Getpid() && entry.Nonce == f.nonce
}

// release is rule 9.
func (f *foreignLease) release() {
	if now, ok := f.read(); ok && now == f.mine {
		os.Remove(f.lock)
	}
}

func createExclusive(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(text)
	return err
}

func foreignAlive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// foreignRole is that implementation as a program: "take" and "release".
func foreignRole(home string, lines *bufio.Scanner) int {
	f := newForeign(home)
	fmt.Println("ready")
	for lines.Scan() {
		switch lines.Text() {
		case "take":
			switch err := f.take(home); {
			case err == nil:
				fmt.Println("held")
			case errors.Is(err, errForeignHeld):
				fmt.Println("refused")
			default:
				fmt.Println("refused", err)
			}
		case "release":
			f.release()
			fmt.Println("ok")
		}
	}
	return 0
}
