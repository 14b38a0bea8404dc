//go:build all

package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestADecisionThatCannotBeSynced: every fdatasync of the log fails for the daemon, as on a disk that is dying. The person is not told
// that it was approved, the daemon ends saying what to do, and the next one reads what the file has.
func TestADecisionThatCannotBeSynced(t *testing.T) {
	w := newWorld(t)
	w.stopInTime(w.up())
	self, err := exec.LookPath("/proc/self/exe")
	w.must(err)
	self, err = filepath.EvalSymlinks(self)
	w.must(err)
	args := []string{"-f", "-o", filepath.Join(w.dir, "trace"), "-P", w.logFile(), "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO", self, "up"}
	before := len(w.telegram.Calls("getUpdates"))
	daemon := w.startCommand(exec.Command("strace", args...), []string{"up"})
	w.await(daemon, "the daemon to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > before })
	// Through the files, and not waiting: nobody but the daemon looks at the log now.
	w.runEnv([]string{"XDG_RUNTIME_DIR=" + w.dir}, 0, "request", "deploy:api#41", "--class", "deploy.production", "--summary", "a test")
	card := w.card(daemon, "deploy:api#41")
	answers := len(w.telegram.Calls("answerCallbackQuery"))
	w.tap(card, "Approve")
	if code := daemon.code(); code == 0 || code >= 128 {
		t.Errorf("exit code %d", code)
	}
	if last := daemon.lastLine(); !strings.Contains(last, w.logFile()) || !strings.Contains(last, "fsync") || !strings.Contains(last, "disk") {
		t.Errorf("the last line: %q", last)
	}
	for _, call := range w.telegram.Calls("answerCallbackQuery")[answers:] {
		if strings.Contains(strings.ToLower(call.Args["text"]), "approved") || strings.Contains(strings.ToLower(call.Args["text"]), "granted") {
			t.Errorf("the person was told %q", call.Args["text"])
		}
	}
	if shown, _ := w.telegram.Message(alice, card.ID); len(shown.Buttons) == 0 {
		t.Error("the card was settled")
	}
	daemon = w.up()
	w.settled(daemon, card)
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	w.run(0, "wait", "deploy:api#41")
	w.run(0, "log", "verify", "--semantic")
}

// runEnv is run with other variables.
func (w *world) runEnv(more []string, want int, args ...string) *process {
	w.t.Helper()
	env := w.env
	w.env = append(slices.Clone(env), more...)
	defer func() { w.env = env }()
	return w.run(want, args...)
}

// TestNamesAreMadeDurable reads in a trace that each file that is put in its place was synced before and its directory afterwards,
// before anything is said of it.
func TestNamesAreMadeDurable(t *testing.T) {
	program := onethread(t)
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			g, err := newFaultGate(program, quickDir(t), "")
			if err == nil {
				err = s.from(g)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, calls, err := g.traced(s.work, "all", "")
			if err != nil || got.code != 0 {
				t.Fatalf("%v: %v", err, got)
			}
			placed := 0
			for i, c := range calls {
				from, to := c.names(g.home)
				switch {
				case strings.HasSuffix(to, ".lock"):
					continue // lives for a moment, and one that a crash brings back is judged
				case c.name == "renameat" || c.name == "linkat":
				case c.creates && (to == "log/events.jsonl" || to == "daemon/deliveries.jsonl"):
				default:
					continue
				}
				placed++
				synced := from == "" || from == "log/events.jsonl" // what is linked into the archive was synced as a log
				for _, earlier := range calls[:i] {
					synced = synced || earlier.name == "fdatasync" && earlier.path == from
				}
				if !synced {
					t.Errorf("not synced before: %s", c.text)
				}
				synced = false
				for _, later := range calls[i:] {
					if later.name == "write" && strings.HasPrefix(later.text, "write(1<") {
						break
					}
					synced = synced || later.name == "fsync" && later.path == filepath.Dir(to)
				}
				if !synced {
					t.Errorf("its directory is not synced afterwards: %s", c.text)
				}
			}
			if placed == 0 && name != "append" && name != "many appends through one handle" && name != "delivery journal" {
				t.Error("no file was put in its place")
			}
		})
	}
}

// names are the paths below the home that the call names: the last of them, and the one before it.
func (c sysCall) names(home string) (from, to string) {
	for part := range strings.SplitSeq(c.text, `"`) {
		if rest, ok := strings.CutPrefix(part, home+"/"); ok {
			from, to = to, rest
		}
	}
	return from, to
}
