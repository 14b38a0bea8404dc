package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// demoProcess starts the demo with a temporary directory of its own, which must be empty again in the end.
func demoProcess(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err = os.MkdirTemp("", "e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := filepath.Glob(filepath.Join(tmp, "approvald-demo-*"))
		if err != nil || len(left) != 0 {
			t.Errorf("the demo left behind: %v", left)
		}
		os.RemoveAll(tmp)
	})
	cmd = exec.Command(self, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "TMPDIR="+tmp)
	return cmd, tmp
}

func TestDemoPlaysByItself(t *testing.T) {
	t.Parallel()
	cmd, _ := demoProcess(t, "--auto")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"exit code 0: granted", "exit code 3: rejected", "exit code 4: expired", "the card was not sent a second time",
		"exit code 10, without a call to Telegram", "telegram-poller-running", "the daemon stopped in order", "clean",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not say %q:\n%s", want, out.String())
		}
	}
}

// TestDemoWithAPersonAtTheTerminal answers each card by the key of its first or second button.
func TestDemoWithAPersonAtTheTerminal(t *testing.T) {
	t.Parallel()
	cmd, _ := demoProcess(t, "--terminal")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	keys := []string{"1", "2", "r", "a"} // yes, no, no, yes
	var seen bytes.Buffer
	answered := 0
	buf := make([]byte, 4096)
	for {
		n, err := tty.Read(buf)
		seen.Write(buf[:n])
		if asked := bytes.Count(seen.Bytes(), []byte("q leaves:")); asked > answered && answered < len(keys) {
			if _, err := tty.WriteString(keys[answered]); err != nil {
				t.Fatal(err)
			}
			answered++
		}
		if err != nil {
			break // EIO: the last process let go of the terminal
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, seen.String())
	}
	for _, want := range []string{"exit code 0: granted", "exit code 3: rejected", "clean"} {
		if !strings.Contains(seen.String(), want) {
			t.Errorf("the demo does not say %q:\n%s", want, seen.String())
		}
	}
}

func TestDemoInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	cmd, tmp := demoProcess(t, "--auto")
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(out.String(), "Alice taps") {
		time.Sleep(5 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("an interrupted demo ended as if it was told to its end")
	}
	// Every child ran in the demo's directory.
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, tmp) {
			t.Errorf("%s still runs in %s", filepath.Dir(link), cwd)
		}
	}
}

func TestDemoLeftEarlyIsNoFailure(t *testing.T) {
	t.Parallel()
	cmd, _ := demoProcess(t, "--terminal")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	var seen bytes.Buffer
	buf := make([]byte, 4096)
	for left := false; err == nil; {
		var n int
		n, err = tty.Read(buf)
		seen.Write(buf[:n])
		if !left && bytes.Contains(seen.Bytes(), []byte("q leaves:")) {
			left = true
			if _, err := tty.WriteString("\x1b[A"); err != nil { // an arrow key, which is no A
				t.Fatal(err)
			}
			for !bytes.Contains(seen.Bytes(), []byte("That key is no button")) {
				n, err := tty.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				seen.Write(buf[:n])
			}
			if _, err := tty.WriteString("q"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, seen.String())
	}
	if !strings.Contains(seen.String(), "nothing is left behind") {
		t.Errorf("the end is not told:\n%s", seen.String())
	}
}
