//go:build all

package e2e

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/approvald/approvald/internal/telegramtest"
)

// atTerminal runs a command of a person, as root.
func (w *world) atTerminal(args ...string) {
	w.t.Helper()
	self, err := os.Executable()
	w.must(err)
	cmd := exec.Command(self, args...)
	cmd.Env, cmd.Dir = w.env, w.dir
	tty, err := pty.Start(cmd)
	w.must(err)
	defer tty.Close()
	said, _ := io.ReadAll(tty) // EIO: the command let go of the terminal
	if err := cmd.Wait(); err != nil {
		w.t.Fatalf("approvald %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// TestRootLocksNobodyOut does everything that writes as root on a gate that belongs to another user, before that user's first start
// and later: all that is made is the user's, and the user's daemon and commands go on.
func TestRootLocksNobodyOut(t *testing.T) {
	const uid = 4321
	w := newWorld(t, limits("max_pending = 60"))
	own := func() {
		w.t.Helper()
		w.must(filepath.WalkDir(w.dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil || path == w.dir {
				return err
			}
			return os.Lchown(path, uid, uid)
		}))
	}
	w.must(os.Chmod(w.dir, 0o755))
	own()
	for _, name := range []string{"config", "config/approvald", "config/approvald/default.toml"} {
		w.must(os.Lchown(filepath.Join(w.dir, name), 0, 0))
		w.must(os.Chmod(filepath.Join(w.dir, name), 0o755))
	}
	as := func(want int, args ...string) {
		w.t.Helper()
		p := w.startAs(uid, args...)
		if code := p.code(); code != want {
			w.t.Fatalf("as the user: approvald %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, p.stdout.String(), p.stderr.String())
		}
	}
	wantOwned := func(after string) {
		w.t.Helper()
		for _, root := range []string{"state", "run", "lock"} {
			w.must(filepath.WalkDir(filepath.Join(w.dir, root), func(path string, _ os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				info, err := os.Lstat(path)
				if err != nil {
					return err
				}
				if stat := info.Sys().(*syscall.Stat_t); info.Mode()&os.ModeSocket == 0 && (stat.Uid != uid || stat.Gid != uid) {
					w.t.Errorf("after %s: %s belongs to %d:%d", after, path, stat.Uid, stat.Gid)
				}
				return nil
			}))
		}
	}
	payload := w.write("payload.bin", "\x00bytes")
	ask := []string{"--class", "deploy.production", "--summary", "s", "--as", "ci"}
	request := func(key string, more ...string) []string {
		return append(append([]string{"request", key}, ask...), more...)
	}

	// Root comes first, before there is a home.
	w.run(0, request("root:1", "--payload", payload)...)
	w.atTerminal("approve", "root:1", "--as", "human:alice", "--yes")
	w.run(0, request("root:2")...)
	w.run(0, "withdraw", "root:2", "--as", "ci", "--reason", "cancelled")
	wantOwned("requests, an approval and a withdrawal")
	as(0, request("user:1")...)
	as(0, "show", "root:1")

	// A torn tail, an archive, and the daemon itself.
	log, err := os.OpenFile(w.logFile(), os.O_WRONLY|os.O_APPEND, 0)
	w.must(err)
	_, err = log.WriteString(`{"half`)
	w.must(err)
	w.must(log.Close())
	w.run(0, request("root:3")...)
	w.run(0, "log", "archive", "--carry")
	w.atTerminal("reject", "root:3", "--as", "human:bob", "--yes")
	wantOwned("a quarantine, an archive and a rejection")
	as(0, "log", "verify")
	w.stopInTime(w.up())
	w.stopInTime(w.up()) // what the first has made does not keep the second out
	wantOwned("a daemon of root's")

	// What root leaves when it is killed in the middle of an append: its lock, which the user has to read to judge it.
	w.up().kill()
	left, err := filepath.Glob(filepath.Join(filepath.Dir(w.logFile()), ".events.jsonl.lock-*"))
	w.must(err)
	if len(left) == 0 {
		t.Fatal("root's daemon kept no lock")
	}
	w.must(os.Link(left[0], w.logFile()+".lock"))
	as(0, request("user:2")...)
	as(0, "log", "archive", "--carry")

	before := len(w.telegram.Calls("getUpdates"))
	daemon := w.startAs(uid, "up")
	w.await(daemon, "the user's daemon to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > before })
	w.must(os.Chmod(filepath.Join(w.dir, "run", "approvald"), 0o755))
	w.run(0, "log", "archive", "--carry") // under the daemon
	w.run(0, request("root:5", "--payload", payload)...)
	as(0, request("user:3")...)
	w.card(daemon, "root:5")
	w.card(daemon, "user:3")
	wantOwned("an archive under the daemon")
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("the daemon ended with %s", strconv.Itoa(code))
	}
	as(0, "log", "verify")
}
