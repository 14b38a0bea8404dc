package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestTroublesAreNamed(t *testing.T) {
	well := transport.Health{LastSuccess: noon.Add(-time.Second), Patience: 50 * time.Second}
	failing := []dispatch.Failing{{Key: "deploy:api#41", Reason: "connection refused"}, {Key: "other", Reason: "connection refused"}}
	for name, c := range map[string]struct {
		health func(*transport.Health)
		alarm  dispatch.Alarm
		want   string // the codes
		text   string // in the first one's text
	}{
		"well":               {},
		"an old error":       {health: func(h *transport.Health) { h.Error = "connection refused" }},
		"deaf":               {health: func(h *transport.Health) { h.LastSuccess = noon.Add(-time.Minute) }, want: "deaf", text: "last heard (1m ago)"},
		"never heard":        {health: func(h *transport.Health) { h.LastSuccess, h.Error = time.Time{}, "no route" }, want: "deaf", text: "never heard since the start (1h ago): no route"},
		"token":              {health: func(h *transport.Health) { h.Cause, h.Error = transport.CauseToken, "rejects" }, want: "token-rejected", text: "rejects"},
		"poller":             {health: func(h *transport.Health) { h.Cause = transport.CauseConflict }, want: "updates-taken"},
		"displaced and deaf": {health: func(h *transport.Health) { h.Cause, h.LastSuccess = transport.CauseDisplaced, noon.Add(-time.Hour) }, want: "webhook-displaced deaf"},
		"full disk":          {health: func(h *transport.Health) { h.Cause = transport.CauseStorage }, alarm: dispatch.Alarm{StorageProblem: "no space", Failing: failing}, want: "storage", text: "no space"},
		"closed chat":        {alarm: dispatch.Alarm{ChatProblem: "kicked", ChatClosed: true, Failing: failing}, want: "chat-unreachable", text: "kicked"},
		"not confirmed":      {alarm: dispatch.Alarm{Failing: []dispatch.Failing{{Key: "k", Reason: "timeout", MaybeSeen: true}}}, want: "undelivered", text: "not known whether anybody was shown k: timeout"},
		"not delivered":      {alarm: dispatch.Alarm{ChatProblem: "connection refused", Failing: failing}, want: "undelivered", text: "deploy:api#41 yet: connection refused (and 1 more)"},
	} {
		h := well
		if c.health != nil {
			c.health(&h)
		}
		list := describe(noon, noon.Add(-time.Hour), h, c.alarm)
		var codes []string
		for _, tr := range list {
			codes = append(codes, tr.Code)
		}
		if got := strings.Join(codes, " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if len(list) > 0 && !strings.Contains(list[0].Text, c.text) {
			t.Errorf("%s: text %q", name, list[0].Text)
		}
	}
}

func TestATroubleThatBlinksHasNotEnded(t *testing.T) {
	var s sightings
	seen := func(after time.Duration) time.Time {
		return s.note(noon.Add(after), []gateapi.Trouble{{Code: "deaf"}})[0].Since
	}
	for _, c := range []struct{ at, since time.Duration }{{0, 0}, {blink, 0}, {2 * blink, 0}, {3*blink + time.Second, 3*blink + time.Second}} {
		if got := seen(c.at); !got.Equal(noon.Add(c.since)) {
			t.Errorf("seen after %s: since %s", c.at, got.Sub(noon))
		}
	}
}

// TestWhenTheOperatorIsTold plays a trouble that comes, goes and comes again.
func TestWhenTheOperatorIsTold(t *testing.T) {
	n := newNotifier(func() bool { return true }, nil, zap.NewNop())
	now := noon
	told := func() (list []string) {
		for {
			select {
			case item := <-n.queue:
				list = append(list, item.state+" "+item.trouble.Code)
			default:
				return list
			}
		}
	}
	var since time.Time
	play := func(d time.Duration, present bool) string {
		var list []string
		if present {
			since = now
		}
		for end := now.Add(d); now.Before(end); now = now.Add(lookEvery) {
			var troubles []gateapi.Trouble
			if present {
				troubles = []gateapi.Trouble{{Code: "deaf", Since: since}}
			}
			n.consider(now, troubles)
			list = append(list, told()...)
		}
		return strings.Join(list, ", ")
	}
	for i, step := range []struct {
		d       time.Duration
		present bool
		want    string
	}{
		{troubleGrace, true, ""}, // passes by itself
		{time.Hour, false, ""},
		{time.Hour, true, "begin deaf"}, // once, however long
		{troubleGrace, false, ""},       // only out of sight
		{time.Minute, true, ""},
		{time.Minute, false, "end deaf"},
		{time.Hour, true, "begin deaf"},
		{time.Minute, false, "end deaf"},
		{troubleRepeat / 2, true, "begin deaf"},
		{time.Minute, false, "end deaf"},
		{time.Minute, true, ""}, // too soon after the last
		{troubleRepeat, true, "begin deaf"},
	} {
		if got := play(step.d, step.present); got != step.want {
			t.Errorf("step %d: told %q, want %q", i, got, step.want)
		}
	}
	// The command is taken out of the configuration and put back: it is told what is wrong then.
	wanted := true
	n.wanted = func() bool { return wanted }
	long := gateapi.Trouble{Code: "storage", Since: now.Add(-time.Hour)}
	for _, step := range []struct {
		wanted bool
		want   int
	}{{true, 1}, {true, 1}, {false, 1}, {true, 2}} {
		wanted = step.wanted
		n.consider(now, []gateapi.Trouble{long})
		if len(n.queue) != step.want {
			t.Errorf("%d things were told, want %d", len(n.queue), step.want)
		}
	}
}

func TestWhatTheCommandCannotKeepUpWithIsToldLater(t *testing.T) {
	n := newNotifier(func() bool { return true }, nil, zap.NewNop())
	var troubles []gateapi.Trouble
	for i := range maxNews + 3 {
		troubles = append(troubles, gateapi.Trouble{Code: fmt.Sprint(i), Since: noon})
	}
	n.consider(noon.Add(time.Minute), troubles)
	got := len(n.queue)
	for range got {
		<-n.queue
	}
	n.consider(noon.Add(2*time.Minute), troubles)
	if got != maxNews || len(n.queue) != 3 {
		t.Errorf("told %d, then %d", got, len(n.queue))
	}
}

// script writes an executable shell script.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "told")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheCommandGetsTheTroubleAndNothingElse(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	t.Setenv("NOTIFY_SOCKET", "/run/notify")
	t.Setenv("BOT_TOKEN", "7:secret")
	// A descriptor that whoever started the daemon left open.
	var inherited [2]int
	if err := syscall.Pipe(inherited[:]); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited[0])
	defer syscall.Close(inherited[1])
	path := script(t, fmt.Sprintf(`{ printf '%%s\n' "$@"; pwd; /usr/bin/env | /usr/bin/sort; echo fds; for f in /proc/self/fd/*; do
n=${f##*/}; if [ -e "$f" ] && [ "$n" -gt 2 ]; then /usr/bin/readlink "$f"; fi; done; } >%q.tmp; /bin/mv %q.tmp %q`, out, out, out))
	c := command{argv: []string{path, "own arg"}, gate: "prod", limit: time.Minute, run: newFamily().run, redact: func(s string) string { return strings.ReplaceAll(s, "7:secret", "[redacted]") }}
	item := news{stateBegin, gateapi.Trouble{Code: gateapi.TroubleDeaf, Text: "no route to 7:secret\nPATH=/evil", Since: noon}}
	if err := c.tell(t.Context(), item); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	const line = `no route to [redacted]\u{a}PATH=/evil`
	text := string(got)
	want := "own arg\nbegin\ndeaf\n" + line + "\n/\n"
	if !strings.HasPrefix(text, want) {
		t.Errorf("arguments and directory:\n%s\nwant\n%s", text, want)
	}
	env, fds, _ := strings.Cut(strings.TrimPrefix(text, want), "fds\n")
	var names []string
	for entry := range strings.Lines(env) {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	// The shell adds PWD, and itself the last command.
	if got := strings.Join(names, " "); strings.Contains(env, "secret") || strings.Contains(env, "NOTIFY") || !strings.Contains(env, "APPROVALD_TROUBLE_SINCE=2026-05-01T12:00:00Z\n") || len(names) > 8 {
		t.Errorf("environment: %s\n%s", got, env)
	}
	if strings.Contains(fds, "pipe:") || strings.Contains(fds, "socket:") {
		t.Errorf("descriptors of the daemon:\n%s", fds)
	}
}

func TestTheCommandIsBounded(t *testing.T) {
	c := command{gate: "prod", limit: 200 * time.Millisecond, run: newFamily().run, redact: func(s string) string { return s }}
	mark := filepath.Join(t.TempDir(), "mark")
	c.argv = []string{script(t, fmt.Sprintf("/bin/sleep 600 & echo $! >%q; wait", mark))}
	if err := c.tell(t.Context(), news{}); err == nil || !strings.Contains(err.Error(), "killed after") {
		t.Errorf("a command that hangs: %v", err)
	}
	pid, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		// The child of the child is gone, or a zombie that its new parent has not collected yet.
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if errors.Is(err, os.ErrNotExist) || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("what it started lives on: %s", stat)
		}
	}
	c.limit = time.Minute
	c.argv = []string{script(t, "echo no such pager >&2; exit 3")}
	if err := c.tell(t.Context(), news{}); err == nil || !strings.Contains(err.Error(), "exit status 3: no such pager") {
		t.Errorf("a command that fails: %v", err)
	}
	c.argv = []string{"/does/not/exist"}
	if err := c.tell(t.Context(), news{}); err == nil {
		t.Error("a command that is not there")
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.argv = []string{script(t, "/bin/sleep 600")}
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := c.tell(ctx, news{}); err == nil {
		t.Error("a command that outlives the daemon")
	}
}

// TestTroubleIsInTheStatus: the bot's chat cannot be reached, which is known before any request needs it.
func TestTroubleIsInTheStatus(t *testing.T) {
	o, telegram := testGate(t)
	telegram.Fault(telegramtest.Fault{Method: "getChat", Do: telegramtest.Fail(400, "Bad Request: chat not found"), Count: telegramtest.Always})
	a := start(t, o)
	awaitClosed(t, "the daemon", a.Ready())
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		s, err := a.status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Troubles) == 1 && s.Troubles[0].Code == gateapi.TroubleChat && strings.Contains(s.Troubles[0].Text, "chat not found") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("troubles %+v", s.Troubles)
		}
	}
}

// TestHealthIsJudgedByTroubles: a transport that exchanges with Telegram is not healthy while no tap can arrive or nothing be shown.
func TestHealthIsJudgedByTroubles(t *testing.T) {
	taken := []gateapi.Trouble{{Code: gateapi.TroubleConflict, Text: "another program polls"}}
	moved := dispatch.Stats{Degraded: "set telegram.chat_id to it"}
	for name, c := range map[string]struct {
		way      gateapi.Transport
		troubles []gateapi.Trouble
		stats    dispatch.Stats
		healthy  bool
		says     string
	}{
		"well":                {way: gateapi.Transport{Healthy: true}, healthy: true},
		"an old error":        {way: gateapi.Transport{Healthy: true, Error: "refused"}, healthy: true, says: "refused"},
		"silent yet":          {way: gateapi.Transport{Error: "refused"}, says: "refused"},
		"no tap can arrive":   {way: gateapi.Transport{Healthy: true}, troubles: taken, says: "another program polls"},
		"with its own words":  {way: gateapi.Transport{Healthy: true, Error: "409"}, troubles: taken, says: "409"},
		"not shown":           {way: gateapi.Transport{Healthy: true}, stats: dispatch.Stats{ChatProblem: "kicked"}, says: "kicked"},
		"the group moved":     {way: gateapi.Transport{Healthy: true}, stats: moved, healthy: true, says: "set telegram.chat_id to it"},
		"moved and contested": {way: gateapi.Transport{Healthy: true}, troubles: taken, stats: moved, says: "another program polls"},
	} {
		judgeHealth(&c.way, c.troubles, c.stats)
		if c.way.Healthy != c.healthy || c.way.Error != c.says {
			t.Errorf("%s: healthy %v, %q", name, c.way.Healthy, c.way.Error)
		}
	}
}

func TestContactIsKeptForTheNextDaemon(t *testing.T) {
	o, _ := testGate(t)
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Stop() //nolint:errcheck // it was never started
	if !a.lastContact().IsZero() {
		t.Error("a gate without a past was in contact")
	}
	if err := os.MkdirAll(filepath.Dir(a.contactFile()), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Time{time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)} {
		a.noteContact(at)
		if got := a.lastContact(); got.Sub(at).Abs() > time.Millisecond {
			t.Errorf("noted %v, read %v", at, got)
		}
	}
	a.noteContact(time.Now().Add(time.Hour))
	if got := a.lastContact(); !got.IsZero() {
		t.Errorf("contact in the future: %v", got)
	}
}

// TestTheFirstContactIsToldAtOnce: a daemon that is killed within two seconds of each start has still noted its contact.
func TestTheFirstContactIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var heard, looked []time.Duration
		ctx, cancel := context.WithTimeout(t.Context(), 5*lookEvery-time.Millisecond)
		defer cancel()
		contact := func() bool {
			age := time.Since(began)
			if age < 320*time.Millisecond {
				return false
			}
			heard = append(heard, age)
			return true
		}
		if err := keepLooking(ctx, contact, func() { looked = append(looked, time.Since(began)) }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
		if len(heard) != 5 || heard[0] > 320*time.Millisecond+lookAtFirst {
			t.Errorf("contact was told at %v, want at once and then with every look", heard)
		}
		if len(looked) != 5 || looked[0] != 0 || looked[4] != 4*lookEvery {
			t.Errorf("looked at %v", looked)
		}
	})
}
