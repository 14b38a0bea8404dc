package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	aliceID = 111
	// stepLimit bounds what a machine has to do between two lines of the story. It is long, so that a slow machine tells the same
	// story; a fast one never gets near it.
	stepLimit = 20 * time.Second
)

// world is where the story happens: a temporary directory, a Bot API server on loopback, the processes.
type world struct {
	screen   *screen
	dir      string
	telegram *telegramtest.Server
	alice    *telegramtest.Phone
	family   *family
	daemon   *child
}

func newWorld(ctx context.Context, s *screen, program string) (*world, error) {
	dir, err := makeDir()
	if err != nil {
		return nil, err
	}
	w := &world{screen: s, dir: dir, telegram: telegramtest.New(telegramtest.Options{})}
	w.family = &family{program: program, dir: dir, env: w.environment()}
	if err := w.furnish(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// makeDir makes the directory, short enough for a unix socket in it.
func makeDir() (string, error) {
	const longest = 60
	parent := os.TempDir()
	if len(parent) > longest {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "approvald-demo-")
	if err != nil {
		return "", fmt.Errorf("make a directory for the demo: %w", err)
	}
	return filepath.EvalSymlinks(dir)
}

// environment is the demo's own with every place that the program would look at moved into the directory.
func (w *world) environment() []string {
	moved := map[string]string{
		"HOME":               w.dir,
		"XDG_CONFIG_HOME":    filepath.Join(w.dir, "config"),
		"XDG_STATE_HOME":     filepath.Join(w.dir, "state"),
		"XDG_RUNTIME_DIR":    filepath.Join(w.dir, "run"),
		"APPROVALD_LOCK_DIR": filepath.Join(w.dir, "lock"),
		"NO_COLOR":           "1",
	}
	dropped := []string{"STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
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

// furnish starts the Bot API server and writes what `approvald init` would have written.
func (w *world) furnish() error {
	if err := w.telegram.Start(); err != nil {
		return fmt.Errorf("start the Bot API server: %w", err)
	}
	w.telegram.AddUser(telegramtest.User{ID: aliceID, FirstName: "Alice"})
	w.alice = w.telegram.Phone(aliceID)

	for _, name := range []string{"config/approvald", "state", "run", "lock", "work"} {
		if err := os.MkdirAll(filepath.Join(w.dir, name), 0o700); err != nil {
			return err
		}
	}
	token := filepath.Join(w.dir, "bot.token")
	config := fmt.Sprintf(`[telegram]
token_file = %q
chat_id = %d
api_base = %q

[[approvers]]
id = "alice"
telegram_user_id = %d
`, token, aliceID, w.telegram.URL(), aliceID)
	for name, text := range map[string]string{
		token: w.telegram.Token() + "\n",
		filepath.Join(w.dir, "config/approvald/default.toml"): config,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// close leaves nothing behind: no process, no socket, no file.
func (w *world) close() error {
	w.family.killAll()
	w.telegram.Close()
	if err := os.RemoveAll(w.dir); err != nil {
		return fmt.Errorf("remove the demo's directory: %w", err)
	}
	return nil
}

// explain shows what a person needs to see why a step did not hold.
func (w *world) explain() {
	if w.daemon == nil {
		return
	}
	w.screen.line("  what the daemon said last:")
	lines := strings.Split(strings.TrimSpace(w.daemon.output.String()), "\n")
	for _, line := range lines[max(0, len(lines)-15):] {
		w.screen.line("    " + line)
	}
}

// startDaemon starts `approvald up` and waits until it asks Telegram for updates, which it does last.
func (w *world) startDaemon(ctx context.Context) (time.Duration, error) {
	before := len(w.telegram.Calls("getUpdates"))
	daemon, err := w.family.start(nil, "up")
	if err != nil {
		return 0, err
	}
	w.daemon = daemon
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	polling := make(chan error, 1)
	go func() {
		polling <- w.telegram.WaitFor(ctx, func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > before })
	}()
	select {
	case err := <-polling:
		if err != nil {
			return 0, fmt.Errorf("the daemon did not come up: %w", err)
		}
		return time.Since(daemon.began), nil
	case <-daemon.done:
		cancel()
		<-polling
		return 0, fmt.Errorf("the daemon ended while it started: %v", daemon.err)
	}
}

// stopDaemon asks the daemon to stop and returns its exit code.
func (w *world) stopDaemon(ctx context.Context) (int, time.Duration, error) {
	began := time.Now()
	if err := w.daemon.signal(syscall.SIGTERM); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	code, err := w.daemon.exit(ctx)
	return code, time.Since(began), err
}

// write puts a file into the directory that the commands run in.
func (w *world) write(name, text string) error {
	return os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600)
}

// cards returns the messages on Alice's phone that name a key.
func (w *world) cards(key string) []telegramtest.Message {
	return slices.DeleteFunc(w.telegram.Messages(aliceID), func(m telegramtest.Message) bool { return !strings.Contains(m.Body(), key) })
}

// awaitCard waits until a message that names the key can be tapped.
func (w *world) awaitCard(ctx context.Context, key string) (telegramtest.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	card, err := w.telegram.WaitMessage(ctx, aliceID, func(m telegramtest.Message) bool {
		return strings.Contains(m.Body(), key) && len(m.Buttons) > 0
	})
	if err != nil {
		return card, fmt.Errorf("no card for %s reached the phone: %w", key, err)
	}
	return card, nil
}

// awaitNoted waits until the daemon has noted every message that it sent. One that is killed between Telegram's answer and that note
// has to send the card again, under a button that counts as well; that is right, and not the story of this chapter.
func (w *world) awaitNoted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	journal := filepath.Join(w.dir, "state", "approvald", "default", ".approval", "daemon", "deliveries.jsonl")
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

// awaitSettled waits until a message has lost its buttons.
func (w *world) awaitSettled(ctx context.Context, card telegramtest.Message) (telegramtest.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	settled, err := w.telegram.WaitMessage(ctx, aliceID, func(m telegramtest.Message) bool {
		return m.ID == card.ID && len(m.Buttons) == 0
	})
	if err != nil {
		return settled, fmt.Errorf("the card kept its buttons: %w", err)
	}
	return settled, nil
}
