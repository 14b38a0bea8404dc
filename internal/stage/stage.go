// Package stage is a throw-away gate to play on: a temporary directory with a gate's configuration and home in it, a Bot API server on
// loopback in Telegram's place, and the real program as daemon and as commands, each a process of its own.
//
// It guarantees that nothing but 127.0.0.1 and that directory is reached, and that Close leaves neither a process nor a file behind;
// processes die also when the program that set the stage is killed.
//
// What is played on it, and whether it holds, is its callers' matter.
package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/telegramtest"
)

var errClosed = errors.New("the stage is closed")

// Options says what stands on a stage.
type Options struct {
	// Program is the absolute path of the approvald to run.
	Program string
	// Name is part of the directory's name.
	Name string
	// Telegram configures the Bot API server.
	Telegram telegramtest.Options
}

// Stage is a throw-away gate.
type Stage struct {
	// Dir holds everything, and is where processes run.
	Dir string
	// Telegram is the Bot API server.
	Telegram *telegramtest.Server

	program string
	env     []string

	mu        sync.Mutex
	processes []*Process
	closed    bool
}

// New sets a stage up. Configure writes what `approvald init` would have written.
func New(o Options) (*Stage, error) {
	dir, err := makeDir(o.Name)
	if err != nil {
		return nil, err
	}
	s := &Stage{Dir: dir, Telegram: telegramtest.New(o.Telegram), program: o.Program}
	s.env = s.environment()
	if err := s.furnish(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// makeDir makes the directory, short enough for a unix socket in it.
func makeDir(name string) (string, error) {
	const longest = 60
	parent := os.TempDir()
	if len(parent) > longest {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "approvald-"+name+"-")
	if err != nil {
		return "", fmt.Errorf("make a directory for the %s: %w", name, err)
	}
	return filepath.EvalSymlinks(dir)
}

// environment is this process's own with every place that the program would look at moved into the directory.
func (s *Stage) environment() []string {
	moved := map[string]string{
		"HOME":               s.Dir,
		"XDG_CONFIG_HOME":    filepath.Join(s.Dir, "config"),
		"XDG_STATE_HOME":     filepath.Join(s.Dir, "state"),
		"XDG_RUNTIME_DIR":    filepath.Join(s.Dir, "run"),
		"APPROVALD_LOCK_DIR": filepath.Join(s.Dir, "lock"),
		"NO_COLOR":           "1",
	}
	dropped := []string{gate.RehearsalVariable, "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
	env := slices.DeleteFunc(os.Environ(), func(assignment string) bool {
		name, _, _ := strings.Cut(assignment, "=")
		_, replaced := moved[name]
		return replaced || slices.Contains(dropped, name) || strings.HasSuffix(strings.ToUpper(name), "_PROXY")
	})
	for name, value := range moved {
		env = append(env, name+"="+value)
	}
	return env
}

func (s *Stage) furnish() error {
	if err := s.Telegram.Start(); err != nil {
		return fmt.Errorf("start the Bot API server: %w", err)
	}
	for _, name := range []string{"config/approvald", "state", "run", "lock", "work"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, name), 0o700); err != nil {
			return err
		}
	}
	return s.Write("bot.token", s.Telegram.Token()+"\n")
}

// Configure writes the default gate's configuration: the bot and the chat, then more, which begins with its own tables.
func (s *Stage) Configure(chatID int64, more string) error {
	return s.Write("config/approvald/default.toml", fmt.Sprintf("home = %q\n\n[telegram]\ntoken_file = %q\nchat_id = %d\napi_base = %q\n\n%s",
		s.Home(), filepath.Join(s.Dir, "bot.token"), chatID, s.Telegram.URL(), more))
}

// Write puts a file into the stage's directory.
func (s *Stage) Write(name, text string) error {
	return os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600)
}

// Home is the gate's home.
func (s *Stage) Home() string {
	return filepath.Join(s.Dir, "state", "approvald", "default", ".approval")
}

// StartDaemon starts `approvald up` and waits until it asks Telegram for updates, which it does last, or hears from it through a
// webhook. It returns how long that took.
func (s *Stage) StartDaemon(ctx context.Context, args ...string) (*Process, time.Duration, error) {
	last := []string{"getUpdates", "setWebhook"}
	before := len(s.Telegram.Calls(last...))
	daemon, err := s.Start(nil, append([]string{"up"}, args...)...)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	serving := make(chan error, 1)
	go func() {
		serving <- s.Telegram.WaitFor(ctx, func(t telegramtest.State) bool { return len(t.Calls(last...)) > before })
	}()
	select {
	case err := <-serving:
		if err != nil {
			return daemon, 0, fmt.Errorf("the daemon did not come up: %w", err)
		}
		return daemon, time.Since(daemon.Began), nil
	case <-daemon.done:
		cancel()
		<-serving
		return daemon, 0, fmt.Errorf("the daemon ended while it started: %v", daemon.err)
	}
}

// AwaitNoted waits until the daemon has noted every message that it sent. One that is killed between Telegram's answer and that note
// has to send the card again, under a button that counts as well.
func (s *Stage) AwaitNoted(ctx context.Context) error {
	journal := filepath.Join(s.Home(), "daemon", "deliveries.jsonl")
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for {
		text, err := os.ReadFile(journal)
		if err != nil {
			return err
		}
		if bytes.Count(text, []byte(`"delivery.sent"`)) >= bytes.Count(text, []byte(`"delivery.intended"`)) {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("the daemon did not note what it sent: %w", context.Cause(ctx))
		}
	}
}

// Close leaves nothing behind: no process, no socket, no file.
func (s *Stage) Close() error {
	s.killAll()
	s.Telegram.Close()
	if err := os.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("remove %s: %w", s.Dir, err)
	}
	return nil
}
