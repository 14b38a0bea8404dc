//go:build all

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// children are the states (/proc/PID/stat, field 3) of a process's children.
func children(pid int) string {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	states := ""
	for _, child := range strings.Fields(string(list)) {
		if text, err := os.ReadFile("/proc/" + child + "/stat"); err == nil {
			states += string(text[strings.LastIndexByte(string(text), ')')+2])
		}
	}
	return states
}

// TestFirstProcessOfAContainer: as pid 1 the daemon waits for what it inherits, stops in order by SIGTERM, and when its container is killed
// leaves nothing behind that the next one would trip over.
func TestFirstProcessOfAContainer(t *testing.T) {
	w := newWorld(t)
	container := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	up := func() (box *process, daemon int) {
		t.Helper()
		before := len(w.telegram.Calls("getUpdates"))
		box = w.startBy(container, "up")
		w.await(box, "the daemon to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > before })
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", box.cmd.Process.Pid))
		w.must(err)
		daemon, err = strconv.Atoi(strings.TrimSpace(string(list)))
		w.must(err)
		return box, daemon
	}
	box, daemon := up()

	// Somebody works in the container and leaves things running there. When they end, they are waited for.

	in, out, err := os.Pipe()
	w.must(err)
	work := exec.Command("nsenter", "--target", strconv.Itoa(daemon), "--pid", "sh", "-c", "for i in 1 2 3 4 5; do (read x <&3; exit 1) & done; (exit 1) &")
	work.ExtraFiles = []*os.File{in}
	w.must(work.Run()) // with no pipe for its output: those that it leaves behind would hold it open
	w.must(in.Close())
	w.until("the daemon to inherit five processes", func() bool { return len(children(daemon)) == 5 })
	w.must(out.Close())
	w.until("the daemon to have no child, and no zombie", func() bool { return children(daemon) == "" })

	w.must(syscall.Kill(daemon, syscall.SIGTERM))
	if code := box.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if s := w.status(); s.Holder.PID != 0 {
		t.Errorf("the lease after the stop: %+v", s.Holder)
	}

	box, daemon = up()
	w.must(syscall.Kill(daemon, syscall.SIGKILL))
	box.code()
	box, daemon = up()
	w.must(syscall.Kill(daemon, syscall.SIGINT))
	if code := box.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
