package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/cli"
	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	programVariable = "APPROVALD_E2E"
	alice           = 111
	bob             = 222
	// patience bounds every wait for something that should happen at once; it says nothing about how fast it should be.
	patience = time.Minute
)

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		hookFromEnvironment()
		os.Exit(cli.Main("e2e"))
	}
	if order := os.Getenv(floodVariable); order != "" {
		floodFromEnvironment(order)
	}
	code := m.Run()
	for _, f := range atEnd {
		f()
	}
	os.Exit(code)
}

// atEnd is called when all tests have ended.
var atEnd []func()

// world is one gate in a directory of its own, with a Telegram of its own.
type world struct {
	t        testing.TB
	dir      string
	home     string
	telegram *telegramtest.Server
	env      []string
	// secrets must not appear in anything that a program prints or writes, apart from the token's own file.
	secrets []string
}

// newWorld makes a gate whose approvers are alice and bob and whose chat is alice's. edit may change the configuration's text.
func newWorld(t testing.TB, edit ...func(w *world, config string) string) *world {
	t.Helper()
	return newWorldWith(t, telegramtest.Options{}, edit...)
}

func newWorldWith(t testing.TB, o telegramtest.Options, edit ...func(w *world, config string) string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-") // t.TempDir is too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, home: filepath.Join(dir, "state", "approvald", "default", ".approval"), telegram: telegramtest.RunT(t, o)}
	w.telegram.AddUser(telegramtest.User{ID: alice, FirstName: "Alice"})
	w.telegram.AddUser(telegramtest.User{ID: bob, FirstName: "Bob"})
	w.secrets = []string{w.telegram.Token(), strings.SplitN(w.telegram.Token(), ":", 2)[1]}
	for _, name := range []string{"config/approvald", "state", "run", "lock"} {
		w.must(os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	w.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "USER=ci", programVariable + "=1", "GOCOVERDIR=" + dir, "GORACE=halt_on_error=1",
		"XDG_CONFIG_HOME=" + filepath.Join(dir, "config"), "XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"), "APPROVALD_LOCK_DIR=" + filepath.Join(dir, "lock"),
	}
	w.write("bot.token", w.telegram.Token()+"\n")
	config := fmt.Sprintf(`[telegram]
token_file = %q
chat_id = %d
api_base = %q

[[approvers]]
id = "alice"
telegram_user_id = %d

[[approvers]]
id = "bob"
telegram_user_id = %d
`, filepath.Join(dir, "bot.token"), alice, w.telegram.URL(), alice, bob)
	for _, f := range edit {
		config = f(w, config)
	}
	w.write("config/approvald/default.toml", config)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	w.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// process is one run of the program.
type process struct {
	w      *world
	args   []string
	cmd    *exec.Cmd
	done   chan struct{}
	err    error
	ended  time.Time
	stdout output
	stderr output
}

// output is what a process has printed so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start runs the program. It is killed at the latest when the test ends.
func (w *world) start(args ...string) *process {
	w.t.Helper()
	self, err := os.Executable()
	w.must(err)
	return w.startCommand(exec.Command(self, args...), args)
}

// startCommand starts cmd, which runs the program with args in some way.
func (w *world) startCommand(cmd *exec.Cmd, args []string) *process {
	w.t.Helper()
	p := &process{w: w, args: args, cmd: cmd, done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = w.env, w.dir
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if p.cmd.SysProcAttr == nil {
		p.cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	w.must(p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		p.ended = time.Now()
		close(p.done)
	}()
	w.t.Cleanup(func() {
		p.kill()
		for _, secret := range w.secrets {
			if text := p.stdout.String() + p.stderr.String(); strings.Contains(text, secret) {
				w.t.Errorf("approvald %s printed a secret:\n%s", strings.Join(args, " "), text)
			}
		}
		if w.t.Failed() {
			w.t.Logf("approvald %s: %v\n%s%s", strings.Join(args, " "), p.err, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended
	<-p.done
}

func (p *process) signal(s os.Signal) {
	p.w.t.Helper()
	p.w.must(p.cmd.Process.Signal(s))
}

// code waits for the end of the process: its exit code, or 128 and the number of the signal that ended it.
func (p *process) code() int {
	p.w.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.w.t.Fatalf("approvald %s did not end", strings.Join(p.args, " "))
	}
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		p.w.t.Fatalf("approvald %s: %v", strings.Join(p.args, " "), p.err)
	}
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// run runs a command to its end and wants an exit code.
func (w *world) run(want int, args ...string) *process {
	w.t.Helper()
	p := w.start(args...)
	if code := p.code(); code != want {
		w.t.Fatalf("approvald %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, p.stdout.String(), p.stderr.String())
	}
	return p
}

// up starts the daemon and waits until it asks for updates.
func (w *world) up(args ...string) *process {
	w.t.Helper()
	before := len(w.telegram.Calls("getUpdates"))
	p := w.start(append([]string{"up"}, args...)...)
	w.await(p, "the daemon to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > before })
	return p
}

// await waits for something to be true at Telegram; p must not end before it is.
func (w *world) await(p *process, what string, cond func(telegramtest.State) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if p != nil {
		go func() {
			select {
			case <-p.done:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	if err := w.telegram.WaitFor(ctx, cond); err != nil {
		text := ""
		if p != nil {
			text = p.stdout.String() + p.stderr.String()
		}
		w.t.Fatalf("waited for %s: %v\n%s", what, err, text)
	}
}

// request files a request as a program that waits for the decision, and returns that program with the card. The daemon knows then
// that the card was sent: one that dies before has to send it again.
func (w *world) request(daemon *process, key string, more ...string) (*process, telegramtest.Message) {
	w.t.Helper()
	known := w.journalEvents("delivery.sent")
	p := w.start(append([]string{"request", key, "--class", "deploy.production", "--summary", "a test", "--wait"}, more...)...)
	card := w.card(daemon, key)
	w.until("the daemon to note the message", func() bool { return w.journalEvents("delivery.sent") > known })
	return p, card
}

// card waits for a message about a key that can be tapped.
func (w *world) card(daemon *process, key string) telegramtest.Message {
	w.t.Helper()
	var card telegramtest.Message
	w.await(daemon, "a card for "+key, func(s telegramtest.State) bool {
		for _, m := range s.Messages(alice) {
			if strings.Contains(m.Body(), key) && len(m.Buttons) > 0 {
				card = m
				return true
			}
		}
		return false
	})
	return card
}

// tap presses a button of a card on alice's phone.
func (w *world) tap(card telegramtest.Message, button string) {
	w.t.Helper()
	if _, err := w.telegram.Phone(alice).TapMessage(card, button); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) settled(daemon *process, card telegramtest.Message) telegramtest.Message {
	w.t.Helper()
	w.await(daemon, "the card to be settled", func(s telegramtest.State) bool {
		card, _ = s.Message(alice, card.ID)
		return len(card.Buttons) == 0
	})
	return card
}

// record is one line of the approval log, as little of it as the tests need.
type record struct {
	Seq       int64  `json:"seq"`
	Event     string `json:"event"`
	Actor     string `json:"actor"`
	ActionKey string `json:"action_key"`
	Hash      string `json:"hash"`
	Prev      string `json:"prev"`
}

var hashMember = regexp.MustCompile(`"hash":"[0-9a-f]{64}",?`)

// records reads the log without any of the product's code and checks the chain as an independent verifier would: dense sequence
// numbers, each record's hash over its bytes without the hash member, each prev the hash before.
func (w *world) records() []record {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.home, "log", "events.jsonl"))
	w.must(err)
	return w.chain(text)
}

// chain is records for the text of a log.
func (w *world) chain(text []byte) []record {
	w.t.Helper()
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		w.t.Fatalf("the log ends in a torn record: %q", text[max(0, len(text)-80):])
	}
	var records []record
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			w.t.Fatalf("record %d: %v", len(records)+1, err)
		}
		// Stored lines are canonical: cutting the member out leaves the canonical text without it.
		sum := sha256.Sum256(hashMember.ReplaceAll(line, nil))
		prev := ""
		if n := len(records); n > 0 {
			prev = records[n-1].Hash
		}
		if r.Seq != int64(len(records)+1) || r.Prev != prev || r.Hash != hex.EncodeToString(sum[:]) {
			w.t.Fatalf("record %d breaks the chain: %s", len(records)+1, line)
		}
		records = append(records, r)
	}
	return records
}

// events lists what the log says about a key.
func (w *world) events(key string) []string {
	w.t.Helper()
	var events []string
	for _, r := range w.records() {
		if r.ActionKey == key {
			events = append(events, r.Event)
		}
	}
	return events
}

func (w *world) wantEvents(key string, want ...string) {
	w.t.Helper()
	if got := w.events(key); !slices.Equal(got, want) {
		w.t.Errorf("the log says about %s: %v, want %v", key, got, want)
	}
}
