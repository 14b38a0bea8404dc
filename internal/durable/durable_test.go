package durable

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// steps records the operations and fails the one numbered fail, counted from 1.
type steps struct {
	ops  []string
	fail int
	err  error
}

func (s *steps) hook(op, _ string) error {
	s.ops = append(s.ops, op)
	if len(s.ops) == s.fail {
		return s.err
	}
	return nil
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestWriteFileOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	s := &steps{}
	if err := (FS{Hook: s.hook}).WriteFile("x", path, []byte("new"), 0o640); err != nil {
		t.Fatal(err)
	}
	if want := []string{"x.open", "x.write", "x.sync", "x.rename", "x.syncdir"}; !equal(s.ops, want) {
		t.Errorf("steps %v, want %v", s.ops, want)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// Whatever step fails, the file is the whole old one or the whole new one, and nothing is left.
func TestWriteFileIsWholeOrUntouched(t *testing.T) {
	for fail := 1; fail <= 5; fail++ {
		for _, injected := range []error{syscall.EIO, &Partial{N: 2, Err: syscall.ENOSPC}} {
			path := filepath.Join(t.TempDir(), "f")
			if err := (FS{}).WriteFile("x", path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			s := &steps{fail: fail, err: injected}
			err := (FS{Hook: s.hook}).WriteFile("x", path, []byte("new"), 0o600)
			if !errors.Is(err, injected) {
				t.Fatalf("step %d: error %v", fail, err)
			}
			want := "old"
			if s.ops[len(s.ops)-1] == "x.syncdir" {
				want = "new"
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("step %s: %q, %v; want %s", s.ops[len(s.ops)-1], got, err, want)
			}
			if left := names(t, filepath.Dir(path)); !equal(left, []string{"f"}) {
				t.Errorf("step %d: left behind %v", fail, left)
			}
		}
	}
}

func TestCreateExclusiveHasOneWinner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var group sync.WaitGroup
	var mu sync.Mutex
	var won []byte
	for i := range byte(20) {
		group.Go(func() {
			data := bytes.Repeat([]byte{i}, 1000)
			err := FS{}.CreateExclusive("x", path, data, 0o600)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && won == nil:
				won = data
			case err == nil:
				t.Error("two winners")
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, won) {
		t.Errorf("%v: not the winner's bytes", err)
	}
	if left := names(t, filepath.Dir(path)); !equal(left, []string{"f"}) {
		t.Errorf("left behind %v", left)
	}
}

func TestMkdirAllSyncsEachParent(t *testing.T) {
	root := t.TempDir()
	s := &steps{}
	a, b := filepath.Join(root, "a"), filepath.Join(root, "a", "b")
	dir := filepath.Join(b, "c")
	var did []string
	hook := func(op, path string) error {
		did = append(did, op+" "+path)
		return nil
	}
	if err := (FS{Hook: hook}).MkdirAll("d", dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// Each is synced after it was made and has the name of the next, and its own name is durable before the next is made.
	want := []string{"d.mkdir " + a, "d.syncdir " + root, "d.mkdir " + b, "d.syncdir " + a, "d.mkdir " + dir, "d.syncdir " + b, "d.syncdir " + dir}
	if !equal(did, want) {
		t.Errorf("steps %v, want %v", did, want)
	}
	if err := (FS{Hook: s.hook}).MkdirAll("d", dir, 0o700); err != nil || len(s.ops) != 0 {
		t.Errorf("again: %v, steps %v", err, s.ops)
	}
	file := filepath.Join(root, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (FS{}).MkdirAll("d", file, 0o700); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file in the place: %v", err)
	}
}

func TestFilePartialWrite(t *testing.T) {
	s := &steps{fail: 2, err: &Partial{N: 3, Err: syscall.ENOSPC}}
	path := filepath.Join(t.TempDir(), "f")
	f, err := FS{Hook: s.hook}.OpenFile("x", path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := f.Write([]byte("abcdef")); n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%d, %v", n, err)
	}
	if err := f.Truncate(1); err != nil {
		t.Error(err)
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "a" {
		t.Errorf("%q, %v", got, err)
	}
}

// A write that takes only a part is gone on with, and never past a part that is not there.
func TestExtendGoesOnAfterAShortWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	short := func(n int, meanwhile func()) FS {
		done := false
		return FS{Hook: func(op, _ string) error {
			if op != "x.write" || done {
				return nil
			}
			done = true
			meanwhile()
			return &Partial{N: n, Err: io.ErrShortWrite}
		}}
	}
	extend := func(f FS) (int, error) {
		file, err := f.OpenFile("x", path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		return file.Extend([]byte("abcdef"), 0)
	}
	for name, test := range map[string]struct {
		n         int
		meanwhile string // what comes into the file besides
		want      string
		ok        bool
	}{
		"half":            {3, "", "abcdef", true},
		"nothing":         {0, "", "", false},
		"bytes too many":  {3, "x", "xabc", false},
		"bytes elsewhere": {5, "xyz", "xyzabcde", false},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := extend(short(test.n, func() {
				if test.meanwhile != "" {
					if err := os.WriteFile(path, []byte(test.meanwhile), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}))
			if (err == nil) != test.ok || err != nil && !errors.Is(err, io.ErrShortWrite) {
				t.Errorf("error %v", err)
			}
			if want := test.n; !test.ok && n != want {
				t.Errorf("%d bytes were taken, want %d", n, want)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != test.want {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
