package lease

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCopiedHome: the record names a living holder, but of the original. Nobody
// waits for that one to look here, and it keeps what it has.
func TestCopiedHome(t *testing.T) {
	original, copied := newGate(t), newGate(t)
	holder := start(t, "holder", original)
	holder.expect("ready")
	holder.tell("take")
	holder.expect("held")
	text, err := os.ReadFile(original.record())
	if err != nil {
		t.Fatal(err)
	}
	copied.write(t, copied.record(), string(text))
	o := copied.options()
	o.grace = time.Hour
	l := mustAcquire(t, o)
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	holder.tell("check")
	holder.expect("ok")
}

// TestEveryTakeSweeps removes what a killed process left, also when it left no record.
func TestEveryTakeSweeps(t *testing.T) {
	g := newGate(t)
	left := filepath.Join(filepath.Dir(g.record()), ".telegram-transport.lock.tmp-0011223344556677")
	g.write(t, left, "")
	mustAcquire(t, g.options())
	if _, err := os.Lstat(left); err == nil {
		t.Error("it is still there")
	}
}
