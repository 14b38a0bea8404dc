package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The files by which one transport at a time serves a gate.
func (w *world) recordFile() string {
	return filepath.Join(w.home, "daemon", "telegram-transport.lock")
}
func (w *world) flockFile() string {
	return filepath.Join(w.home, "daemon", "telegram-transport.flock")
}

// leaseReport is what `approvald lease --json` says, by the names that are frozen.
type leaseReport struct {
	Held   bool
	Holder *struct {
		PID     int
		Mode    string
		Epoch   int64
		Foreign bool
	}
	Verdict, Why, Hint string
	KernelLock         string `json:"kernel_lock"`
	Path               string
}

func (w *world) lease() leaseReport {
	w.t.Helper()
	var r leaseReport
	w.must(json.Unmarshal([]byte(w.run(0, "lease", "--json").stdout.String()), &r))
	return r
}

// tree describes every file below some directories so closely that nothing can be made, changed or replaced unseen.
func (w *world) tree(dirs ...string) map[string]string {
	w.t.Helper()
	tree := map[string]string{}
	for _, dir := range dirs {
		w.must(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.Name() == "contact" {
				return nil // a living daemon notes there when it last heard of Telegram
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			content := ""
			if info.Mode().IsRegular() {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				content = fmt.Sprintf("%x", sha256.Sum256(text))
			}
			tree[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime(), info.Sys().(*syscall.Stat_t).Ino, content)
			return nil
		}))
	}
	return tree
}

func (w *world) wantUnchanged(before map[string]string, dirs ...string) {
	w.t.Helper()
	after := w.tree(dirs...)
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if after[path] != before[path] {
			w.t.Errorf("%s changed from %q to %q", path, before[path], after[path])
		}
		delete(after, path)
	}
	for path := range after {
		w.t.Errorf("%s is new", path)
	}
}

// wantRefusal wants a start that ended with a code and exactly one line that names things.
func (p *process) wantRefusal(code int, names ...string) {
	p.w.t.Helper()
	if got := p.code(); got != code {
		p.w.t.Errorf("approvald %s: exit code %d, want %d", strings.Join(p.args, " "), got, code)
	}
	text := p.stderr.String()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") || p.stdout.String() != "" {
		p.w.t.Errorf("approvald %s: a refusal is one line on stderr:\n%s%s", strings.Join(p.args, " "), p.stdout.String(), text)
	}
	for _, name := range names {
		if !strings.Contains(text, name) {
			p.w.t.Errorf("approvald %s: the refusal does not name %q: %s", strings.Join(p.args, " "), name, text)
		}
	}
}

// TestRefusalsLeaveNothing: a second daemon that somebody starts again and again costs a line each time and nothing else.
func TestRefusalsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	w.until("the daemon to be ready", func() bool { return strings.Contains(daemon.stderr.String(), "ready") })
	daemon.stop() // stopped, it holds the gate as before, and whatever changes now is not its doing
	before, calls := w.tree(w.dir), w.countCalls()
	var took []time.Duration
	for range 10 {
		began := time.Now()
		var refused []*process
		for range 10 {
			refused = append(refused, w.start("up"))
		}
		for _, p := range refused {
			p.wantRefusal(10, "telegram-poller-running", fmt.Sprint("pid ", daemon.cmd.Process.Pid), "mode poll", "since 20", w.recordFile(), "--standby")
			took = append(took, p.ended.Sub(began))
		}
	}
	w.wantUnchanged(before, w.dir)
	if n := w.countCalls(); n != calls {
		t.Errorf("the refused daemons called Telegram %d times", n-calls)
	}
	slices.Sort(took)
	if half := took[len(took)/2]; half > time.Second {
		t.Errorf("half of the refusals took more than %v, ten at a time", half)
	}
	daemon.signal(syscall.SIGCONT)
	w.wantServes(daemon, "still:served")
}

// countCalls counts all calls but those of a poll that goes round.
func (w *world) countCalls() int {
	return len(w.telegram.Calls()) - len(w.telegram.Calls("getUpdates"))
}

// wantServes has a request decided through the daemon.
func (w *world) wantServes(daemon *process, key string) {
	w.t.Helper()
	waiter, card := w.request(daemon, key)
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		w.t.Errorf("%s: exit code %d: %s", key, code, waiter.stderr.String())
	}
	w.wantEvents(key, "approval.requested", "approval.granted")
	w.settled(daemon, card)
}

// finalCodes are the exit codes after which the shipped unit does not start the daemon again.
func finalCodes(t *testing.T) []string {
	t.Helper()
	unit, err := os.ReadFile("../../deploy/systemd/approvald@.service")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^RestartPreventExitStatus=(.*)$`).FindSubmatch(unit)
	if line == nil {
		t.Fatal("the unit has no RestartPreventExitStatus")
	}
	return strings.Fields(string(line[1]))
}

// TestLosersAreNotRestartedForEver: the pair of the exit code and the unit's list of codes.
func TestLosersAreNotRestartedForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.up()
	final, starts := finalCodes(t), 0
	for _, code := range []string{"2", "10", "11"} { // configuration, lease held, lease unavailable or lost
		if !slices.Contains(final, code) {
			t.Errorf("RestartPreventExitStatus lacks %s", code)
		}
	}
	losers := make([]*process, 20)
	for i := range losers {
		losers[i] = w.start("up")
		starts++
	}
	for i := range losers {
		for code := losers[i].code(); !slices.Contains(final, fmt.Sprint(code)); code = losers[i].code() {
			if starts++; starts > 2*len(losers) {
				t.Fatalf("code %d is not in RestartPreventExitStatus=%s: a supervisor restarts for ever", code, strings.Join(final, " "))
			}
			losers[i] = w.start("up")
		}
	}
	if starts != len(losers) {
		t.Errorf("%d starts of %d losing instances", starts, len(losers))
	}
}

// TestTheOtherModeIsRefused: poll and webhook exclude each other, and the line says so.
func TestTheOtherModeIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	config, err := os.ReadFile(filepath.Join(w.dir, "config/approvald/default.toml"))
	w.must(err)
	secret := w.write("webhook.secret", strings.Repeat("s", 32))
	w.write("config/approvald/default.toml", string(config)+fmt.Sprintf(`
[transport]
mode = "webhook"
[transport.webhook]
url = "https://gate.example/hook"
listen = "127.0.0.1:0"
secret_file = %q
`, secret))
	w.start("up").wantRefusal(10, "telegram-poller-running", "mode poll", fmt.Sprint(daemon.cmd.Process.Pid), "exclude each other")
}

// TestOneBotHoweverTheGatesAreSpelled: two gates on one bot are refused; one gate under two names is one gate.
func TestOneBotHoweverTheGatesAreSpelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	config, err := os.ReadFile(filepath.Join(w.dir, "config/approvald/default.toml"))
	w.must(err)
	w.must(os.Symlink(filepath.Join(w.dir, "state"), filepath.Join(w.dir, "elsewhere")))
	other := filepath.Join(w.dir, "elsewhere", "approvald", "other", ".approval")
	for name, home := range map[string]string{
		"other":  filepath.Join(w.dir, "state", "approvald", "other", ".approval"),
		"linked": other,
		"dotted": w.dir + "/state//approvald/./other/../other/.approval/",
	} {
		w.write("config/approvald/"+name+".toml", fmt.Sprintf("home = %q\n", home)+string(config))
		w.start("up", "--gate", name).wantRefusal(10, "bot-owned-elsewhere", w.home, fmt.Sprint(daemon.cmd.Process.Pid), filepath.Join(w.dir, "lock"))
	}
	for name, home := range map[string]string{
		"same-linked": filepath.Join(w.dir, "elsewhere", "approvald", "default", ".approval"),
		"same-dotted": w.dir + "/state//approvald/./default/.approval/",
	} {
		w.write("config/approvald/"+name+".toml", fmt.Sprintf("home = %q\n", home)+string(config))
		w.start("up", "--gate", name).wantRefusal(10, "telegram-poller-running", w.recordFile())
	}
	for _, call := range w.telegram.Calls("getUpdates") {
		if call.Status == 409 {
			t.Error("a second gate polled for the bot")
		}
	}
	daemon.signal(syscall.SIGTERM)
	daemon.code()
	w.up("--gate", "dotted") // a bot that is free again can be had
}

// TestLeaseIsShownInEveryState: `approvald lease` says who holds the gate and why we think so, and takes nothing.
func TestLeaseIsShownInEveryState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	look := func(verdict string, held bool, words ...string) leaseReport {
		t.Helper()
		dirs := []string{filepath.Join(w.dir, "state"), filepath.Join(w.dir, "lock"), filepath.Join(w.dir, "run")}
		before := w.tree(dirs...)
		r, text := w.lease(), w.run(0, "lease").stdout.String()
		w.wantUnchanged(before, dirs...)
		if r.Verdict != verdict || r.Held != held || r.Path != w.recordFile() || r.Why == "" {
			t.Errorf("%s: the report: %+v", verdict, r)
		}
		for _, word := range append(words, "lease: "+verdict, "why: ", w.recordFile()) {
			if !strings.Contains(text, word) {
				t.Errorf("%s: the text does not say %q:\n%s", verdict, word, text)
			}
		}
		return r
	}

	look("free", false)
	daemon := w.up()
	w.until("the first contact to be noted", func() bool {
		_, err := os.Stat(filepath.Join(w.home, "daemon", "contact"))
		return err == nil
	})
	r := look("held", true, fmt.Sprint("pid ", daemon.cmd.Process.Pid), "epoch: 1", "mode poll", "since ", "next: ")
	if r.Holder.PID != daemon.cmd.Process.Pid || r.Holder.Mode != "poll" || r.Holder.Epoch != 1 || r.Holder.Foreign || r.KernelLock == "free" {
		t.Errorf("held: %+v of %+v", r, r.Holder)
	}
	daemon.kill()
	if r := look("stale", false, "gone: ", fmt.Sprint("pid ", daemon.cmd.Process.Pid)); r.Holder.Epoch != 1 {
		t.Errorf("the dead holder: %+v", r.Holder)
	}
	w.must(os.Truncate(w.recordFile(), 20))
	if r := look("torn", false, "unclean"); r.Holder != nil {
		t.Errorf("a torn record names %+v", r.Holder)
	}

	// Another implementation's record names a process and no more.
	other := w.otherProcess()
	w.writeForeign(other.Process.Pid)
	if r := look("held", true, fmt.Sprint("pid ", other.Process.Pid), "certainly gone"); !r.Holder.Foreign {
		t.Errorf("the other implementation's: %+v", r.Holder)
	}
	w.start("up").wantRefusal(10, "telegram-poller-running", fmt.Sprint(other.Process.Pid), w.recordFile())
	w.must(other.Process.Kill())
	other.Wait() //nolint:errcheck // it was killed
	look("stale", false, "gone: ")

	w.must(os.Remove(w.recordFile()))
	w.must(os.Mkdir(w.recordFile(), 0o700))
	for _, args := range [][]string{{"lease"}, {"up"}} {
		w.start(args...).wantRefusal(11, "telegram-lease-unavailable", w.recordFile())
	}
	var failed struct {
		Error struct{ Code, Message string }
	}
	w.must(json.Unmarshal([]byte(w.run(11, "lease", "--json").stdout.String()), &failed))
	if failed.Error.Code != "telegram-lease-unavailable" || !strings.Contains(failed.Error.Message, w.recordFile()) {
		t.Errorf("unreadable: %+v", failed)
	}
	w.must(os.Remove(w.recordFile()))
	w.wantServes(w.up(), "after:all")
}

// otherProcess is some process that is no approvald.
func (w *world) otherProcess() *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w.must(cmd.Start())
	w.t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	return cmd
}

// writeForeign puts the record of another implementation in place: a number and a wall-clock time.
func (w *world) writeForeign(pid int) {
	w.t.Helper()
	text := fmt.Sprintf(`{"version":1,"pid":%d,"mode":"poll","started_at":%q,"instance_home":%q}`,
		pid, time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), w.home)
	aside := w.recordFile() + ".other"
	w.must(os.WriteFile(aside, []byte(text), 0o600))
	w.must(os.Rename(aside, w.recordFile()))
}

// TestRecordsThatAreNoHolders: whatever a crash, an older version or a recycled number left, the kernel lock is free and the gate starts,
// and says what it found.
func TestRecordsThatAreNoHolders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.up().kill()
	dead, err := os.ReadFile(w.recordFile())
	w.must(err)
	other := w.otherProcess()
	for name, record := range map[string]string{
		"empty":                      "",
		"half":                       `{"pid":12`,
		"zeros":                      strings.Repeat("\x00", 4096),
		"a pid and nothing else":     `{"pid":1}`,
		"of another program's pid":   regexp.MustCompile(`"pid":\d+`).ReplaceAllString(string(dead), fmt.Sprint(`"pid":`, other.Process.Pid)),
		"of another boot":            regexp.MustCompile(`"boot_id":"[^"]+"`).ReplaceAllString(string(dead), `"boot_id":"00000000-0000-0000-0000-000000000000"`),
		"of a process that has gone": string(dead),
	} {
		w.must(os.WriteFile(w.recordFile(), []byte(record), 0o600))
		w.must(os.Chtimes(w.recordFile(), time.Now(), time.Now().AddDate(-2, 0, 0)))
		daemon := w.up()
		w.until(name+": the daemon to say what it found", func() bool {
			text := daemon.stderr.String()
			return strings.Contains(text, "the stop before was unclean") || strings.Contains(text, "reclaimed the lease of")
		})
		daemon.kill()
	}
	daemon := w.up()
	for _, damage := range []string{"", `{"pid":12`, `{"pid":1}`, strings.Repeat("\x00", 4096)} {
		w.must(os.WriteFile(w.recordFile(), []byte(damage), 0o600))
		w.start("up").wantRefusal(10, "telegram-poller-running", fmt.Sprint(daemon.cmd.Process.Pid))
	}
	w.wantServes(daemon, "held:throughout")
	if other.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("a process that only had the number was ended")
	}
}
