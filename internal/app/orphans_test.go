package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const familyVariable = "APPROVALD_TEST_FAMILY"

// A process that inherits others waits for them, and never takes the end of one of its own from who started it. The test is a process of
// its own: it waits for everything.
func TestInheritedProcessesAreWaitedFor(t *testing.T) {
	if os.Getenv(familyVariable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestInheritedProcessesAreWaitedFor$", "-test.v")
		cmd.Env = append(os.Environ(), familyVariable+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: ") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	f := newFamily()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.inherit(ctx) }()
	results := make(chan error, 4)
	for range 4 {
		go func() {
			for i := range 25 {
				// It ends by itself, and leaves somebody behind who ends just then, or later.
				err := f.run(exec.Command("sh", "-c", fmt.Sprintf("(exit 0) & (sleep 0.01) & (sleep 0.2; exit 3) & exit %d", i)))
				if exit, ok := errors.AsType[*exec.ExitError](err); i > 0 && (!ok || exit.ExitCode() != i) || i == 0 && err != nil {
					results <- fmt.Errorf("own command %d: %w", i, err)
					return
				}
			}
			results <- nil
		}()
	}
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); errors.Is(err, unix.ECHILD) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("somebody is left")
		}
	}
	cancel(errInterrupted)
	if err := <-done; !errors.Is(err, errInterrupted) {
		t.Error(err)
	}
	if len(f.own) > 0 {
		t.Errorf("still taken for own: %v", f.own)
	}
}
