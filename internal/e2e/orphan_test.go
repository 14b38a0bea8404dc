package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestADaemonThatNobodyListensTo: whoever read its log has gone, its standard descriptors are closed, or its parent has ended. It
// serves on, and stops in order.
func TestADaemonThatNobodyListensTo(t *testing.T) {
	for name, shell := range map[string]string{
		"descriptors closed": `"$0" up <&- >&- 2>&-`,
		"parent gone":        `"$0" up >/dev/null 2>&1 & :`,
		"readers gone":       `exec "$0" up`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			self, err := os.Executable()
			w.must(err)
			cmd := exec.Command("sh", "-c", shell, self)
			cmd.Env, cmd.Dir = w.env, w.dir
			out, err := cmd.StderrPipe()
			w.must(err)
			cmd.Stdout = cmd.Stderr
			w.must(cmd.Start())
			w.must(out.Close()) // from now on a line of the log is an EPIPE and a SIGPIPE
			ended := make(chan struct{})
			go func() {
				cmd.Wait() //nolint:errcheck // what counts is the daemon's own end
				close(ended)
			}()
			w.await(nil, "the daemon to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > 1 })
			pid := w.lease().Holder.PID
			t.Cleanup(func() {
				syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
				<-ended
			})
			if name == "parent gone" {
				<-ended
				stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
				w.must(err)
				if parent := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[1]; parent == strconv.Itoa(cmd.Process.Pid) {
					t.Fatal("the parent is still there")
				}
			}
			w.must(syscall.Kill(pid, syscall.SIGHUP)) // makes it write to its log
			w.wantServes(nil, "deploy:api#41")
			w.must(syscall.Kill(pid, syscall.SIGTERM))
			w.until("the daemon to let go", func() bool { return !w.lease().Held })
			w.run(0, "log", "verify")
		})
	}
}
