package lease

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockCallFails: exclusion that cannot be promised is not assumed.
func TestLockCallFails(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOLCK, unix.EOPNOTSUPP, unix.ENOSYS, unix.EINVAL, unix.EIO, unix.EBADF} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			g := newGate(t)
			o := g.options()
			o.sys = realSystem()
			calls := 0
			o.sys.flock = func(int, int) error { calls++; return errno }
			_, err := Acquire(t.Context(), o)
			u := wantUnavailable(t, err)
			fs, _ := o.sys.filesystem(g.home)
			if !errors.Is(err, errno) || u.Path != g.flock() || !strings.Contains(u.Reason, fs.name) {
				t.Errorf("error = %v, want path, file system %s and %v", err, fs.name, errno)
			}
			want := 1
			if errno == unix.EBADF {
				want = 2 // reopened once
			}
			if calls != want {
				t.Errorf("flock was called %d times, want %d", calls, want)
			}
			if got := g.files(t); got != "telegram-transport.flock" {
				t.Errorf("files: %s", got)
			}
		})
	}
}

func TestLockCallIsRepeated(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EINTR, unix.EBADF} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			o := newGate(t).options()
			o.sys = realSystem()
			failed := false
			o.sys.flock = func(fd, how int) error {
				if !failed {
					failed = true
					return errno
				}
				return unix.Flock(fd, how)
			}
			mustAcquire(t, o)
		})
	}
}

func TestOpenOfTheLockFails(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EACCES, unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.EROFS, unix.EIO} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			g := newGate(t)
			o := g.options()
			o.sys = realSystem()
			o.sys.open = func(string, int, uint32) (int, error) { return -1, errno }
			_, err := Acquire(t.Context(), o)
			if u := wantUnavailable(t, err); u.Path != g.flock() || !errors.Is(err, errno) || u.Hint == "" {
				t.Errorf("error = %v", err)
			}
			if got := g.files(t); got != "" {
				t.Errorf("files: %s", got)
			}
		})
	}
}

// TestEveryStepFails breaks each step of a take, one at a time, with the
// usual errors, on a free gate and on a dead record. Each is a refusal
// that names path and reason and leaves no trace but the kernel lock's file.
func TestEveryStepFails(t *testing.T) {
	steps := func(t *testing.T, g gate) []string {
		var seen []string
		o := g.options()
		o.FS.Hook = func(op, _ string) error { seen = append(seen, op); return nil }
		mustAcquire(t, o).Release()
		return seen
	}
	for name, setup := range map[string]func(*testing.T) gate{"free": func(t *testing.T) gate { return newGate(t) }, "dead": deadGate} {
		all := steps(t, setup(t))
		if len(all) < 4 {
			t.Fatalf("%s: steps %v", name, all)
		}
		for n, step := range all {
			errnos := []unix.Errno{unix.EACCES, unix.ENOSPC, unix.EMFILE, unix.EROFS}
			for _, errno := range []unix.Errno{errnos[n%len(errnos)], errnos[(n+1)%len(errnos)]} {
				t.Run(name+"/"+step+"/"+unix.ErrnoName(errno), func(t *testing.T) {
					t.Parallel()
					g := setup(t)
					o := g.options()
					count := 0
					o.FS.Hook = func(string, string) error {
						count++
						if count == n+1 {
							return errno
						}
						return nil
					}
					_, err := Acquire(t.Context(), o)
					u := wantUnavailable(t, err)
					if !errors.Is(err, errno) || !strings.HasPrefix(u.Path, g.home) {
						t.Errorf("error = %v", err)
					}
					if _, err := os.Stat(filepath.Dir(g.record())); err == nil {
						if got := strings.Trim(strings.TrimPrefix(g.files(t), "telegram-transport.flock"), " "); got != "" && got != "telegram-transport.lock" {
							t.Errorf("files: %s", got)
						}
					}
					// The gate is as free as before.
					mustAcquire(t, g.options())
				})
			}
		}
	}
}

func TestUnusableRecordFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":      func(path string) error { return os.Symlink("/dev/null", path) },
	} {
		t.Run("record is a "+name, func(t *testing.T) {
			g := newGate(t)
			g.mkdir(t)
			if err := make(g.record()); err != nil {
				t.Fatal(err)
			}
			_, err := Acquire(t.Context(), g.options())
			if u := wantUnavailable(t, err); u.Path != g.record() {
				t.Errorf("error = %v", err)
			}
		})
		t.Run("lock is a "+name, func(t *testing.T) {
			g := newGate(t)
			g.mkdir(t)
			if err := make(g.flock()); err != nil {
				t.Fatal(err)
			}
			_, err := Acquire(t.Context(), g.options())
			if u := wantUnavailable(t, err); u.Path != g.flock() {
				t.Errorf("error = %v", err)
			}
		})
	}
	t.Run("daemon is a file", func(t *testing.T) {
		g := newGate(t)
		if err := errors.Join(os.MkdirAll(g.home, 0o700), os.WriteFile(filepath.Join(g.home, "daemon"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := Acquire(t.Context(), g.options())
		wantUnavailable(t, err)
	})
}

func onFilesystem(o Options, magic int64) Options {
	o.sys = realSystem()
	o.sys.statfs = func(_ string, st *unix.Statfs_t) error { st.Type = magic; return nil }
	return o
}

func TestNetworkFileSystems(t *testing.T) {
	for name, magic := range map[string]int64{"nfs": 0x6969, "cifs": 0xFF534D42, "smb2": 0xFE534D42, "9p": 0x01021997, "fuse": 0x65735546} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			o := onFilesystem(g.options(), magic)
			_, err := Acquire(t.Context(), o)
			wantUnavailable(t, err)
			for _, part := range []string{name, "this host only", "--allow-remote-fs", g.home} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
			if _, err := os.Lstat(g.home); err == nil {
				t.Error("the refusal made the home")
			}

			o.AllowRemoteFS = true
			l := mustAcquire(t, o)
			if ev := g.events.await(t, HostOnly); !strings.Contains(ev.Text, name) {
				t.Errorf("event = %+v", ev)
			}
			if fs, hostOnly := l.Filesystem(); fs != name || !hostOnly {
				t.Errorf("Filesystem = %s, %v", fs, hostOnly)
			}
			r, err := inspect(o)
			if err != nil || !r.HostOnly || r.Filesystem != name || !strings.Contains(strings.Join(r.Lines(), "\n"), "this host only") {
				t.Errorf("inspect = %+v, %v", r, err)
			}
		})
	}
	t.Run("unknown type", func(t *testing.T) {
		l := mustAcquire(t, onFilesystem(newGate(t).options(), 0x1234))
		if fs, hostOnly := l.Filesystem(); fs != "type 0x1234" || hostOnly {
			t.Errorf("Filesystem = %s, %v", fs, hostOnly)
		}
	})
	t.Run("statfs fails", func(t *testing.T) {
		o := newGate(t).options()
		o.sys = realSystem()
		o.sys.statfs = func(string, *unix.Statfs_t) error { return unix.EIO }
		_, err := Acquire(t.Context(), o)
		wantUnavailable(t, err)
	})
}
