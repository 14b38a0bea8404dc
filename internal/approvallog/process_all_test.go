//go:build all

package approvallog

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestHundredProcessesKilledAtRandom(t *testing.T) { processesKilledAtRandom(t, 100, 100) }

// TestContainerKilledWhileItAppends: what it leaves is taken over from outside and from another
// container, whose processes its number does not name.
func TestContainerKilledWhileItAppends(t *testing.T) {
	path := logPath(t)
	container := []string{"--pid", "--fork", "--mount-proc", "--kill-child", "--uts"}
	inside := func(work string) *exec.Cmd {
		cmd := exec.Command("unshare", append(container, "sh", "-c", `hostname "$0"; exec "$1"`, fmt.Sprint("c", time.Now().UnixNano()), os.Args[0])...)
		cmd.Env = append(os.Environ(), workerVariable+"="+path+" "+work)
		return cmd
	}
	leave := func() {
		cmd := inside("stay 0")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewScanner(out)
		if !in.Scan() || in.Text() != "in" {
			t.Fatalf("the container says %q", in.Text())
		}
		cmd.Process.Kill()
		for in.Scan() { // to the end of the last process with the pipe
		}
		cmd.Wait()
		if _, err := os.Stat(path + ".lock"); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	if out, err := inside("another 1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	leave()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l := openTest(t, path, func(o *Options) { o.LockWait = time.Hour })
	if _, err := l.Append(ctx, l.Head(), draft("outside")); err != nil {
		t.Fatal(err)
	}
	wantClean(t, path, 2)
}
