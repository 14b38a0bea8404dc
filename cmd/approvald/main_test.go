package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/approvald/approvald/internal/telegramtest"
)

// patience bounds every wait for something that should happen at once; it says
// nothing about how fast it should be.
const patience = time.Minute

const alice = 111

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"approvald": main})
}

// TestScripts runs every verb as a process. Beside testscript's own commands:
//
//	exits CODE PROGRAM ARGS...   run it and want this exit code
//	until PATTERN PROGRAM ARGS   run it until its stdout matches
//	telegram start               a Bot API server; sets $API and $TOKEN
//	telegram polling             wait until a daemon asks it for updates
//	telegram tap BUTTON [N]      wait for a button on alice's phone and press it; with N, when N messages are there
//	telegram settled             wait until no message has a button
//	telegram messages N          want exactly N messages
//	gate [TOML LINE...]          write the default gate's configuration, for $API
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "until": until, "telegram": telegram, "gate": writeGate,
		},
	})
}

// setup gives a script a gate of its own, away from the user's.
func setup(env *testscript.Env) error {
	run, err := os.MkdirTemp("", "av-") // the script's own directory may be too long for a socket
	if err != nil {
		return err
	}
	env.Defer(func() { os.RemoveAll(run) })
	env.Setenv("XDG_RUNTIME_DIR", run)
	for name, dir := range map[string]string{"XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state", "APPROVALD_LOCK_DIR": "lock"} {
		env.Setenv(name, filepath.Join(env.WorkDir, dir))
	}
	env.Setenv("CONFIG", filepath.Join(env.WorkDir, "config", "approvald", "default.toml"))
	env.Setenv("GATE", filepath.Join(env.WorkDir, "state", "approvald", "default", ".approval"))
	env.Setenv("LOG", filepath.Join(env.WorkDir, "state", "approvald", "default", ".approval", "log", "events.jsonl"))
	env.Setenv("API", "http://127.0.0.1:1") // nobody listens there
	env.Setenv("TOKEN", "4242:ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghi")
	s := telegramtest.New(telegramtest.Options{})
	s.AddUser(telegramtest.User{ID: alice, FirstName: "Alice"})
	env.Values[serverKey{}] = s
	return os.MkdirAll(filepath.Join(env.WorkDir, "config", "approvald"), 0o700)
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN PROGRAM ARGS...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err := ts.Exec(args[1], args[2:]...); err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("%s never printed %s", strings.Join(args[1:], " "), args[0])
}

// serverKey finds the script's Bot API server among its values.
type serverKey struct{}

func telegram(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: telegram start|polling|tap|settled|messages")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := ts.Value(serverKey{}).(*telegramtest.Server)
	phone := s.Phone(alice)
	switch args[0] {
	case "start":
		ts.Check(s.Start())
		ts.Defer(s.Close)
		ts.Setenv("API", s.URL())
		ts.Setenv("TOKEN", s.Token())
	case "polling":
		ts.Check(s.WaitPolling(ctx))
	case "tap":
		if len(args) == 3 {
			n, err := strconv.Atoi(args[2])
			ts.Check(err)
			ts.Check(s.WaitFor(ctx, func(st telegramtest.State) bool { return len(st.Messages(alice)) >= n }))
		}
		_, err := phone.WaitTap(ctx, args[1])
		ts.Check(err)
	case "settled":
		ts.Check(s.WaitFor(ctx, func(st telegramtest.State) bool {
			for _, m := range st.Messages(alice) {
				if len(m.Buttons) > 0 {
					return false
				}
			}
			return true
		}))
	case "messages":
		if got := strconv.Itoa(len(phone.Messages())); got != args[1] {
			ts.Fatalf("%s messages, want %s", got, args[1])
		}
	default:
		ts.Fatalf("unknown: telegram %s", args[0])
	}
}

func writeGate(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("unsupported: ! gate")
	}
	token := ts.MkAbs("token")
	ts.Check(os.WriteFile(token, []byte(ts.Getenv("TOKEN")+"\n"), 0o600))
	text := fmt.Sprintf(`[telegram]
token_file = %q
chat_id = %d
api_base = %q
[[approvers]]
id = "alice"
telegram_user_id = %d
%s
`, token, alice, ts.Getenv("API"), alice, strings.Join(args, "\n"))
	ts.Check(os.WriteFile(ts.Getenv("CONFIG"), []byte(text), 0o600))
}
