package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/sdnotify"
	"github.com/approvald/approvald/internal/telegramtest"
)

const patience = time.Minute

// testGate makes a gate with a Telegram of its own, and the options of a daemon for it.
func testGate(t *testing.T) (Options, *telegramtest.Server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "app-") // t.TempDir is too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("RUNTIME_DIRECTORY", "")
	t.Setenv("APPROVALD_LOCK_DIR", filepath.Join(dir, "lock"))
	telegram := telegramtest.RunT(t, telegramtest.Options{Seed: uint64(time.Now().UnixNano())})
	telegram.AddUser(telegramtest.User{ID: 111, FirstName: "Alice"})
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(telegram.Token()), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "gate.toml")
	config := fmt.Sprintf("home = %q\n[telegram]\ntoken_file = %q\nchat_id = 111\napi_base = %q\n[[approvers]]\nid = \"alice\"\ntelegram_user_id = 111\n",
		filepath.Join(dir, ".approval"), token, telegram.URL())
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := gate.LoadConfig("test", file)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Gate: "test", Config: loaded, Version: "test", Logger: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))}, telegram
}

func start(t *testing.T, o Options) *App {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop() }) //nolint:errcheck // the test has looked at what it cares for
	return a
}

func awaitClosed(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited for %s", what)
	}
}

func TestTwoInstancesInOneProcess(t *testing.T) {
	first, _ := testGate(t)
	second, _ := testGate(t)
	a, b := start(t, first), start(t, second)
	awaitClosed(t, "the first daemon", a.Ready())
	awaitClosed(t, "the second daemon", b.Ready())
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	select {
	case <-b.Done():
		t.Error("the second daemon ended with the first")
	default:
	}
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
}

func TestStopIsIdempotentFromAnywhere(t *testing.T) {
	o, _ := testGate(t)
	a := start(t, o)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := a.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := a.Start(t.Context()); !errors.Is(err, ErrStarted) {
		t.Errorf("a second start: %v", err)
	}
	// Everything was let go of: the next one gets it at once.
	b := start(t, o)
	awaitClosed(t, "the next daemon", b.Ready())
}

func TestAnOrdinaryStopIsClean(t *testing.T) {
	o, _ := testGate(t)
	core, logs := observer.New(zap.InfoLevel)
	o.Logger = zap.New(core)
	a := start(t, o)
	awaitClosed(t, "the daemon", a.Ready())
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	for _, entry := range logs.FilterLevelExact(zap.WarnLevel).All() {
		t.Errorf("warning: %s %v", entry.Message, entry.ContextMap())
	}
	for _, entry := range logs.FilterLevelExact(zap.ErrorLevel).All() {
		t.Errorf("error: %s %v", entry.Message, entry.ContextMap())
	}
	if got := logs.FilterMessage("stopped").FilterField(zap.Bool("clean", true)).Len(); got != 1 {
		t.Errorf("%d lines say that the stop was clean", got)
	}
	if _, err := os.Lstat(o.Config.Paths().Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestStopBeforeStart(t *testing.T) {
	o, telegram := testGate(t)
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	awaitClosed(t, "the end of a daemon that never started", a.Done())
	if err := a.Start(t.Context()); !errors.Is(err, ErrStarted) {
		t.Errorf("start after stop: %v", err)
	}
	if n := len(telegram.Calls()); n != 0 {
		t.Errorf("%d calls to Telegram", n)
	}
}

func TestAContextThatEndsStopsTheDaemon(t *testing.T) {
	o, _ := testGate(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- Run(ctx, o) }()
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := <-result; err != nil {
		t.Errorf("a stop that was asked for: %v", err)
	}
}

func TestASecondInstanceIsRefusedWithoutSideEffects(t *testing.T) {
	o, telegram := testGate(t)
	a := start(t, o)
	awaitClosed(t, "the daemon", a.Ready())
	calls := len(telegram.Calls("getMe"))
	err := Run(t.Context(), o)
	var held *lease.HeldError
	if !errors.As(err, &held) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
	if n := len(telegram.Calls("getMe")); n != calls {
		t.Error("the refused instance called Telegram")
	}
	if _, err := net.Dial("unix", o.Config.Paths().Socket); err != nil {
		t.Errorf("the holder's socket: %v", err)
	}
}

func TestARefusedTokenIsAConfigurationFault(t *testing.T) {
	o, telegram := testGate(t)
	telegram.Revoke("7000000001:" + strings.Repeat("n", 35))
	core, logs := observer.New(zap.DebugLevel)
	o.Logger = zap.New(core)
	err := Run(t.Context(), o)
	if gate.ErrorCode(err) != gate.CodeConfig {
		t.Errorf("got %v", err)
	}
	if n := logs.FilterLevelExact(zap.InfoLevel).Len() + logs.FilterLevelExact(zap.WarnLevel).Len() + logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 0 {
		t.Errorf("%d lines were logged beside the refusal: %v", n, logs.All())
	}
	if strings.Contains(fmt.Sprintf("%v %+v", err, err), telegram.Token()) {
		t.Error("the error shows the token")
	}
}

func TestAPartThatFailsEndsTheDaemon(t *testing.T) {
	o, _ := testGate(t)
	a := start(t, o)
	awaitClosed(t, "the daemon", a.Ready())
	// Somebody takes the lease's files away and puts his own there.
	record := filepath.Join(o.Config.Paths().Daemon, "telegram-transport.lock")
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	foreign := strings.Replace(string(text), fmt.Sprintf(`"pid":%d`, os.Getpid()), `"pid":1`, 1)
	if err := os.WriteFile(record+".new", []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(record+".new", record); err != nil {
		t.Fatal(err)
	}
	awaitClosed(t, "the daemon's end", a.Done())
	if err := a.Stop(); !errors.Is(err, lease.ErrLost) {
		t.Errorf("the daemon ended with %v", err)
	}
}

func TestTheServiceManagerIsTold(t *testing.T) {
	o, telegram := testGate(t)
	path := filepath.Join(filepath.Dir(o.Config.Home), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	o.Notify = sdnotify.New(path, 300*time.Millisecond)
	o.RetryMin = 10 * time.Millisecond
	next := func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	telegram.Offline()
	a := start(t, o)
	if got := next(); !strings.HasPrefix(got, "EXTEND_TIMEOUT_USEC=") {
		t.Errorf("first %q", got)
	}
	if got := next(); !strings.HasPrefix(got, "STATUS=starting") {
		t.Errorf("second %q", got)
	}
	select {
	case <-a.Ready():
		t.Error("ready without Telegram")
	default:
	}
	if err := telegram.Online(); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.HasPrefix(got, "READY=1\n") {
		t.Errorf("with Telegram back %q", got)
	}
	for range 3 {
		if got := next(); got != "WATCHDOG=1" {
			t.Errorf("while healthy %q", got)
		}
	}
	go a.Stop() //nolint:errcheck // looked at below
	for got := next(); !strings.HasPrefix(got, "STOPPING=1"); got = next() {
		if got != "WATCHDOG=1" {
			t.Errorf("before the stop %q", got)
		}
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := New(Options{StopLimit: -1})
	for _, want := range []string{"no name", "names no home", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the faults lack %q: %v", want, err)
		}
	}
}
