package gateapi

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/gate"
)

func TestListenMakesPrivateSocket(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: 0o660, filepath.Dir(path): 0o750} {
		fi, err := os.Lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := fi.Mode().Perm(); got != want {
			t.Errorf("mode of %s is %#o, want %#o", p, got, want)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket is still there after Remove: %v", err)
	}
}

// A daemon that was stopped through a take-over wakes and ends: the socket at
// its path is its successor's by then.
func TestASuccessorsSocketIsLeftAlone(t *testing.T) {
	path := socketPath(t)
	old, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if err := old.Remove(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the successor's socket is gone: %v", err)
	}
	c.Close()
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := socketPath(t)
	old, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil { // as after kill -9
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatalf("Listen over a stale socket: %v", err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("dial the new socket: %v", err)
	}
	c.Close()
}

func TestListenRefusesWhatIsNotASocket(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"regular file": func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
		"symlink":      func(p string) error { return os.Symlink("/dev/null", p) },
		"dangling":     func(p string) error { return os.Symlink("/nonexistent/x", p) },
		"directory":    func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			if err := os.Mkdir(filepath.Dir(path), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Listen(t.Context(), path, testGate); !errors.Is(err, ErrNotSocket) {
				t.Errorf("Listen: %v, want ErrNotSocket", err)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || after.Size() != before.Size() {
				t.Errorf("what was there was touched: %v", err)
			}
		})
	}
}

func TestListenRefusesBadPlaces(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path, want string }{
		{"long", "/" + strings.Repeat("x", 107), "has 108 bytes, the kernel takes at most 107"},
		{"relative", "run/s.sock", "not absolute"},
		{"world-writable directory", filepath.Join(open, "s"), "others could replace the socket"},
		{"directory is a file", filepath.Join(file, "s"), "not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Listen(t.Context(), tt.path, testGate)
			if err == nil {
				l.Close()
				t.Fatal("Listen succeeded")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Listen: %v, want it to say %q", err, tt.want)
			}
		})
	}
}

func TestLongestPathIsBound(t *testing.T) {
	path := socketPath(t)
	path = filepath.Join(filepath.Dir(path), strings.Repeat("x", maxSocketPath-len(filepath.Dir(path))-1))
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatalf("Listen on %d bytes: %v", len(path), err)
	}
	l.Close()
}

func TestJudgeListener(t *testing.T) {
	for _, tt := range []struct {
		name             string
		mode             os.FileMode
		dirUID, listener uint32
		ok               bool
	}{
		{"own daemon", 0o750, 1000, 1000, true},
		{"service user's daemon", 0o750, 990, 990, true},
		{"socket activation by root", 0o750, 990, 0, true},
		{"another user's program", 0o750, 990, 1000, false},
		{"user in root's directory", 0o755, 0, 1000, false},
		{"directory of a group", 0o770, 1000, 1000, false},
		{"directory of everybody", 0o777 | os.ModeSticky, 1000, 1000, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := judgeListener("/run/x/s.sock", tt.mode, tt.dirUID, tt.listener); (err == nil) != tt.ok {
				t.Errorf("judgeListener = %v, want ok %v", err, tt.ok)
			}
		})
	}
}

// A gate of the same name but with another home does not take a running daemon's socket away.
func TestListenLeavesAnotherGatesSocket(t *testing.T) {
	path := socketPath(t)
	serve(t, path, newFakeOps())
	_, err := Listen(t.Context(), path, gate.Identity{Name: testGate.Name, Homes: []string{"/other/.approval"}})
	wantCode(t, err, gate.CodeConfig)
	if _, err := client(t, path).List(t.Context()); err != nil {
		t.Errorf("its daemon is not reached any more: %v", err)
	}
}
