package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/visible"
)

const (
	// commandLimit bounds one run of the operator's command; then it and all that it started in its process group are killed.
	commandLimit = 30 * time.Second
	// commandLinger is how long after its end a child may still hold its output open.
	commandLinger = time.Second
	// commandPath is all that the command finds programs on.
	commandPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	maxNewsText = 1000
	maxComplain = 500
)

// command is the operator's own program that is told of trouble.
type command struct {
	argv   []string
	gate   string
	redact func(string) string
	limit  time.Duration
	run    func(*exec.Cmd) error // (*family).run
}

// tell runs the program once. Its environment holds what documentation says and nothing of the daemon's, which may hold the token
// or, in NOTIFY_SOCKET, the way to the service manager; it gets no descriptor of the daemon but /dev/null and a pipe for what it
// complains about; it runs in its own process group, in the root directory.
func (c command) tell(ctx context.Context, item news) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	text := c.text(item.trouble.Text)
	args := append(append([]string(nil), c.argv[1:]...), item.state, item.trouble.Code, text)
	cmd := exec.CommandContext(ctx, c.argv[0], args...)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=" + commandPath,
		"APPROVALD_GATE=" + c.gate,
		"APPROVALD_TROUBLE_STATE=" + item.state,
		"APPROVALD_TROUBLE_CODE=" + item.trouble.Code,
		"APPROVALD_TROUBLE_TEXT=" + text,
		"APPROVALD_TROUBLE_SINCE=" + item.trouble.Since.UTC().Format(time.RFC3339),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = commandLinger
	var complaint tail
	cmd.Stderr = &complaint
	if err := closeOnExec(); err != nil {
		return err
	}
	err := c.run(cmd)
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		return nil // it ended well and left something running in the background
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("%s: killed after %s", c.argv[0], c.limit)
	case err != nil && complaint.Len() > 0:
		return fmt.Errorf("%s: %w: %s", c.argv[0], err, c.text(complaint.String()))
	default:
		return err
	}
}

// text is one line that can be an argument, without secrets.
func (c command) text(s string) string {
	s = visible.Line(c.redact(strings.TrimSpace(s)))
	if len(s) > maxNewsText {
		s = strings.ToValidUTF8(s[:maxNewsText], "") + "…"
	}
	return s
}

// closeOnExec marks every descriptor of this process so that no child gets it. The daemon opens its own that way; whoever started
// the daemon may have left it others.
func closeOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("look at own descriptors: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	n, err := t.Buffer.Write(p)
	if over := t.Len() - maxComplain; over > 0 {
		t.Next(over)
	}
	return n, err
}
