package lease

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func wantBotHeld(t *testing.T, err error) *BotHeldError {
	t.Helper()
	var held *BotHeldError
	if !errors.As(err, &held) {
		t.Fatalf("error = %v, want a *BotHeldError", err)
	}
	oneLine(t, err)
	return held
}

func TestOneGateABot(t *testing.T) {
	t.Setenv("APPROVALD_LOCK_DIR", filepath.Join(t.TempDir(), "locks"))
	one, two := newGate(t), newGate(t)
	first, err := AcquireBot(77, "https://api.telegram.org", one.home)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()

	_, err = AcquireBot(77, "HTTPS://API.telegram.org:443/", two.home)
	held := wantBotHeld(t, err)
	if held.Code != "bot-owned-elsewhere" || held.BotID != 77 || held.Gate != one.home || held.PID != os.Getpid() {
		t.Errorf("held = %+v", held)
	}
	for _, part := range []string{"bot 77", one.home, "take each other's updates", held.Path} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}

	if seen := InspectBot(77, "https://api.telegram.org/"); seen == nil || seen.Gate != one.home || seen.PID != os.Getpid() {
		t.Errorf("seen without taking: %+v", seen)
	}
	if seen := InspectBot(78, "https://api.telegram.org"); seen != nil {
		t.Errorf("nobody has bot 78, and %+v is seen", seen)
	}

	for _, other := range []struct {
		id   int64
		base string
	}{{78, "https://api.telegram.org"}, {77, "http://127.0.0.1:8081"}, {77, "http://127.0.0.1:8082"}} {
		l, err := AcquireBot(other.id, other.base, two.home)
		if err != nil {
			t.Errorf("bot %d at %s: %v", other.id, other.base, err)
			continue
		}
		defer l.Release()
	}

	for range 2 {
		if err := first.Release(); err != nil {
			t.Error(err)
		}
	}
	again, err := AcquireBot(77, "", two.home)
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
}

func TestBotLockIsNamedEvenWithoutContent(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("APPROVALD_LOCK_DIR", dir)
	l, err := AcquireBot(1, "", newGate(t).home)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	files, err := filepath.Glob(dir + "/bot-1-*.lock")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Truncate(files[0], 0); err != nil {
		t.Fatal(err)
	}
	_, err = AcquireBot(1, "", newGate(t).home)
	if held := wantBotHeld(t, err); held.Gate != "" || held.PID != os.Getpid() || !strings.Contains(err.Error(), "another gate") {
		t.Errorf("held = %+v: %v", held, err)
	}
}

// TestUserRuntimeDir: cron and sudo know no XDG_RUNTIME_DIR, and the user's other
// gates have their locks in there.
func TestUserRuntimeDir(t *testing.T) {
	users := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", "/xdg")
	if got := userRuntimeDir(users); got != "/xdg" {
		t.Errorf("as told: %q", got)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	if got := userRuntimeDir(users); got != "" {
		t.Errorf("without any: %q", got)
	}
	own := filepath.Join(users, strconv.Itoa(os.Getuid()))
	if err := os.Symlink("/tmp", own); err != nil {
		t.Fatal(err)
	}
	if got := userRuntimeDir(users); got != "" {
		t.Errorf("a link: %q", got)
	}
	if err := errors.Join(os.Remove(own), os.Mkdir(own, 0o700)); err != nil {
		t.Fatal(err)
	}
	if got := userRuntimeDir(users); got != own {
		t.Errorf("outside a session: %q, want %q", got, own)
	}
}

func TestBotLockUnavailable(t *testing.T) {
	t.Run("relative directory", func(t *testing.T) {
		t.Setenv("APPROVALD_LOCK_DIR", "locks")
		_, err := AcquireBot(1, "", newGate(t).home)
		wantUnavailable(t, err)
	})
	t.Run("directory is a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("APPROVALD_LOCK_DIR", path)
		_, err := AcquireBot(1, "", newGate(t).home)
		wantUnavailable(t, err)
	})
	t.Run("no locks there", func(t *testing.T) {
		t.Setenv("APPROVALD_LOCK_DIR", t.TempDir())
		sys := realSystem()
		sys.flock = func(int, int) error { return unix.ENOLCK }
		_, err := acquireBot(1, "", newGate(t).home, sys)
		wantUnavailable(t, err)
	})
	t.Run("home with a tilde", func(t *testing.T) {
		t.Setenv("APPROVALD_LOCK_DIR", t.TempDir())
		_, err := AcquireBot(1, "", "~/gate")
		wantUnavailable(t, err)
	})
}

func TestAPIHost(t *testing.T) {
	for in, want := range map[string]string{
		"": "api.telegram.org:443", "https://api.telegram.org": "api.telegram.org:443",
		"https://API.Telegram.org/": "api.telegram.org:443", "http://localhost": "localhost:80",
		"http://[::1]:81/x": "localhost:81", "::": "::",
		"http://127.0.0.1:8081": "localhost:8081", "http://127.1.2.3:8081": "localhost:8081", "http://LOCALHOST.:08081/": "localhost:8081",
		"http://[::ffff:127.0.0.1]:8081": "localhost:8081", "http://[0:0:0:0:0:0:0:1]:8081": "localhost:8081", "http://bot.localhost:8081": "localhost:8081",
		"https://api.telegram.org.": "api.telegram.org:443", "HTTP://api.example": "api.example:80",
		"http://[2001:DB8::1]": "[2001:db8::1]:80", "http://10.0.0.1:81": "10.0.0.1:81", "http://localhost.example": "localhost.example:80",
	} {
		if got := apiHost(in); got != want {
			t.Errorf("apiHost(%q) = %q, want %q", in, got, want)
		}
	}
}
