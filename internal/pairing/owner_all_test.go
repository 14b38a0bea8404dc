//go:build all

package pairing

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// Root at a terminal writes for the daemon's user, who could not read the offer otherwise.
func TestTheOfferBelongsToTheDaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 12345, 23456); err != nil {
		t.Fatal(err)
	}
	o, _ := New(time.Now(), Life)
	if err := writeSlip(slipPath(dir), slip{Offer: *o}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(slipPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 23456 || info.Mode().Perm() != 0o600 {
		t.Errorf("owner %d:%d, mode %v", st.Uid, st.Gid, info.Mode())
	}
}
