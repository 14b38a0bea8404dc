package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/transport"
)

const (
	token  = "4242424242:ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghi"
	secret = "s3cret-s3cret-s3cret-s3cret"
)

// quiet is a Telegram for which all is well.
type quiet struct {
	url string // of the webhook
	err error
}

func (q quiet) GetMe(context.Context) (transport.User, error) {
	return transport.User{ID: 4242424242, IsBot: true}, q.err
}
func (q quiet) GetChat(context.Context, int64) (transport.Chat, error) {
	return transport.Chat{Type: "supergroup"}, q.err
}
func (q quiet) GetChatMember(context.Context, int64, int64) (transport.ChatMember, error) {
	return transport.ChatMember{Status: "member"}, q.err
}
func (q quiet) GetWebhookInfo(context.Context) (transport.WebhookInfo, error) {
	return transport.WebhookInfo{URL: q.url}, q.err
}
func (quiet) Close() {}

// newGate writes a gate's files and answers the options to look at it.
func newGate(t *testing.T, more string) Options {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run"))
	t.Setenv("APPROVALD_LOCK_DIR", filepath.Join(dir, "lock"))
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	home := filepath.Join(dir, "state", ".approval")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	config := write("default.toml", fmt.Sprintf("home = %q\n[telegram]\ntoken_file = %q\nchat_id = -1001234567890\n[[approvers]]\nid = \"alice\"\ntelegram_user_id = 111222333\n%s",
		home, write("token", token), strings.ReplaceAll(more, "DIR", dir)))
	write("secret", secret)
	return Options{
		Gate: gate.DefaultGate, Config: config,
		Connect:   func(transport.Options) (Telegram, error) { return quiet{}, nil },
		Systemctl: func(context.Context, ...string) (string, error) { return "", ErrNoSystemd },
	}
}

func look(t *testing.T, o Options, check string) Finding {
	t.Helper()
	list := Run(t.Context(), o, nil)
	i := slices.IndexFunc(list, func(f Finding) bool { return f.Check == check })
	if i < 0 {
		t.Fatalf("no check %s", check)
	}
	return list[i]
}

// first is the first that failed, which for a broken disk has to be the disk: lease, log and journal fail with it.
func first(list []Finding) Finding {
	i := slices.IndexFunc(list, func(f Finding) bool { return f.Status == Failed })
	if i < 0 {
		return Finding{}
	}
	return list[i]
}

func TestDisk(t *testing.T) {
	plenty := unix.Statfs_t{Bsize: 4096, Bavail: 1 << 20, Files: 1 << 20, Ffree: 1 << 20}
	for name, tc := range map[string]struct {
		change       func(*unix.Statfs_t)
		what, repair string
	}{
		"as it should be": {func(*unix.Statfs_t) {}, "4096 MiB free", ""},
		"no inodes known": {func(st *unix.Statfs_t) { st.Files, st.Ffree = 0, 0 }, "4096 MiB free", ""},
		"full":            {func(st *unix.Statfs_t) { st.Bavail = 100 }, "0 MiB free, and a gate wants 16 MiB", "du -xh "},
		"out of inodes":   {func(st *unix.Statfs_t) { st.Ffree = 3 }, "3 inodes free", "du -x --inodes "},
		"read-only":       {func(st *unix.Statfs_t) { st.Flags |= unix.ST_RDONLY }, "is mounted read-only", "mount -o remount,rw "},
	} {
		t.Run(name, func(t *testing.T) {
			o := newGate(t, "")
			o.Statfs = func(_ string, st *unix.Statfs_t) error {
				*st = plenty
				tc.change(st)
				return nil
			}
			f := look(t, o, "disk")
			if !strings.Contains(f.What, tc.what) || !strings.HasPrefix(f.Repair, tc.repair) || (f.Status == Failed) != (tc.repair != "") {
				t.Errorf("%+v", f)
			}
			if tc.repair != "" {
				if f := first(Run(t.Context(), o, nil)); f.Check != "disk" {
					t.Errorf("first failed is %+v", f)
				}
			}
		})
	}
}

func TestUnit(t *testing.T) {
	const loaded = "LoadState=loaded\nSubState=running\nResult=success\nUnitFileState=enabled\nNeedDaemonReload=no\nDropInPaths=/etc/systemd/system/approvald@.service.d/token.conf\nActiveState=active\n"
	for name, tc := range map[string]struct {
		says         string
		err          error
		status       Status
		what, repair string
	}{
		"no systemd":     {"", ErrNoSystemd, NotApplicable, "systemd does not run this machine", ""},
		"not installed":  {"LoadState=not-found\nActiveState=inactive\n", nil, NotApplicable, "is not installed", ""},
		"runs":           {loaded, nil, OK, "is active (running), enabled, with token.conf", ""},
		"not used":       {strings.NewReplacer("=active", "=inactive", "enabled", "disabled").Replace(loaded), nil, NotApplicable, "neither enabled nor started", ""},
		"should run":     {strings.Replace(loaded, "=active", "=inactive", 1), nil, Failed, "should run and does not", "sudo systemctl start approvald@default.service"},
		"failed":         {strings.Replace(loaded, "=active", "=failed", 1), nil, Failed, "is failed", "sudo systemctl restart approvald@default.service"},
		"changed since":  {strings.Replace(loaded, "Reload=no", "Reload=yes", 1), nil, Failed, "changed since systemd read them", "sudo systemctl daemon-reload"},
		"no word of it":  {"", errors.New("exit status 1"), Failed, "systemd does not answer", "systemctl status approvald@default.service"},
		"cannot be read": {"LoadState=bad-setting\n", nil, Failed, "cannot be loaded (bad-setting)", "systemd-analyze verify"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newGate(t, "")
			o.Systemctl = func(context.Context, ...string) (string, error) { return tc.says, tc.err }
			f := look(t, o, "unit")
			if f.Status != tc.status || !strings.Contains(f.What, tc.what) || !strings.HasPrefix(f.Repair, tc.repair) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A gate that has a service is started and restarted by it.
func TestAServiceIsStartedBySystemd(t *testing.T) {
	p := newPatient(Options{Gate: "prod", Systemctl: func(context.Context, ...string) (string, error) {
		return "UnitFileState=enabled\nMainPID=77\n", nil
	}})
	for _, tc := range [][2]string{
		{p.up(t.Context()), "sudo systemctl restart approvald@prod.service"},
		{p.restart(t.Context(), 77), "sudo systemctl restart approvald@prod.service"},
		{p.reload(t.Context(), 77), "sudo systemctl reload approvald@prod.service"},
		{p.restart(t.Context(), 78), "kill -TERM 78 && approvald up --gate prod"},
		{p.reload(t.Context(), 78), "kill -HUP 78"},
	} {
		if tc[0] != tc[1] {
			t.Errorf("%q, want %q", tc[0], tc[1])
		}
	}
}

// An id of a person or chat, a name of a host, an address, a secret: whatever says it, it is not passed on.
func TestWhatIsSaidIsPublic(t *testing.T) {
	o := newGate(t, `[transport]
mode = "webhook"
[transport.webhook]
url = "https://approve.example.com/telegram/prod"
listen = "unix:DIR/hook.sock"
secret_file = "DIR/secret"
`)
	t.Setenv("HTTPS_PROXY", "http://user:pass-word@proxy.example.net:3128")
	leak := fmt.Sprintf("lookup approve.example.com on 192.0.2.53:53 by [2001:db8::1]:443 through proxy.example.net as %s and %s, chat -1001234567890, "+
		"user 111222333, 987654321 of another, http://u:hunter22@h/, 127.0.0.1:80", token, secret)
	o.Connect = func(transport.Options) (Telegram, error) { return quiet{err: errors.New(leak)}, nil }
	all := ""
	for _, f := range Run(t.Context(), o, nil) {
		all += f.What + "\n" + f.Repair + "\n"
	}
	for _, private := range []string{
		token[11:], secret, "approve.example.com", "proxy.example.net", "192.0.2.53", "2001:db8", "1001234567890", "111222333", "987654321",
		"hunter22", "pass-word", os.Getenv("HOME"),
	} {
		if strings.Contains(all, private) {
			t.Errorf("%q is shown in\n%s", private, all)
		}
	}
	for _, want := range []string{"lookup WEBHOOK-HOST on ADDRESS:53", "chat …890", "user …333, …321 of another", "127.0.0.1:80"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in\n%s", want, all)
		}
	}
}

// A token that somebody wrote where none belongs.
func TestATokenInTheWrongPlaceIsNotRepeated(t *testing.T) {
	o := newGate(t, "["+token+"]\n")
	f := first(Run(t.Context(), o, nil))
	if f.Check != "configuration" || strings.Contains(f.What, token[11:]) {
		t.Errorf("%+v", f)
	}
}

// What a check builds on is named, not the links in between.
func TestAFailureIsNamedByWhatBuildsOnIt(t *testing.T) {
	o := newGate(t, "")
	if err := os.Remove(strings.Replace(o.Config, "default.toml", "token", 1)); err != nil {
		t.Fatal(err)
	}
	for _, check := range []string{"bot", "chat", "webhook", "pollers"} {
		if f := look(t, o, check); f.Status != NotApplicable || f.What != "needs token, which failed" {
			t.Errorf("%+v", f)
		}
	}
}

// Whoever holds a check up, whether or not it heeds the end of the time, the run ends.
func TestACheckThatHangsEndsTheRunInTime(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	o := newGate(t, "")
	o.Statfs = func(string, *unix.Statfs_t) error { <-release; return errors.New("late") }
	list := Run(ctx, o, nil)
	close(release)
	if f := first(list); f.Check != "disk" || f.What != "no answer in time" {
		t.Errorf("%+v", f)
	}
	if f := list[len(list)-1]; f.Status != NotApplicable {
		t.Errorf("after the time: %+v", f)
	}
}

// The order is the one in which failures cascade: nothing builds on a later check.
func TestNoCheckNeedsALaterOne(t *testing.T) {
	for i, c := range checks {
		for _, need := range c.needs {
			if at := slices.Index(Names(), need); at < 0 || at >= i {
				t.Errorf("%s needs %s", c.name, need)
			}
		}
	}
}

// The gate's own secret goes to nobody but Telegram: what is posted to the public address is not it.
func TestTheSecretIsNotPosted(t *testing.T) {
	o := newGate(t, "")
	p := newPatient(o)
	p.cfg.Transport.Webhook.URL = "https://approve.example.com/"
	p.asked, p.status = true, new(gateapi.Status)
	posted := false
	p.o.Proxy = roundTrip(func(r *http.Request) (*http.Response, error) {
		posted = true
		if given := r.Header.Get(transport.SecretHeader); given == "" || strings.Contains(given, secret) {
			t.Errorf("posts %q", given)
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	})
	if v := lookAtProxy(t.Context(), p); v.status != Failed || !posted {
		t.Errorf("%+v", v)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A slow Telegram leaves time for what is on this machine.
func TestASlowTelegramLeavesTimeForTheRest(t *testing.T) {
	o := newGate(t, "")
	p := newPatient(o)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	p.remote, p.telegram = over, quiet{}
	for name, run := range map[string]func(context.Context, *patient) verdict{"chat": lookAtChat, "webhook": lookAtWebhook} {
		if v := run(t.Context(), p); v.status != NotApplicable || v.what != slow {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if limit-remoteLimit < daemonLimit+2*time.Second {
		t.Errorf("%s of %s for Telegram leaves too little", remoteLimit, limit)
	}
}

// A command that is pasted leads to the files that it names, however their names are written.
func TestRepairsCanBePasted(t *testing.T) {
	p := newPatient(Options{Gate: gate.DefaultGate})
	t.Setenv("HOME", "/home/alice")
	for path, want := range map[string]string{
		"/home/alice/a b/token":   "chmod 600 ~/'a b/token'",
		"/home/alice/token":       "chmod 600 ~/token",
		"/srv/it's/token":         `chmod 600 '/srv/it'\''s/token'`,
		"/srv/run-2413584285/tok": "chmod 600 /srv/run-2413584285/tok",
	} {
		if got := p.public("chmod 600 " + quote(path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestAProgramIsNotToldTheToken(t *testing.T) {
	t.Setenv("BOT_TOKEN", token)
	out, err := output(t.Context(), "env")
	if err != nil || strings.Contains(out, token) || !strings.Contains(out, "PATH=") {
		t.Errorf("%v: %s", err, out)
	}
}
