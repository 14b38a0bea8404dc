package lease

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOneGateHoweverItsPathIsSpelled: the lease is one, and so is the record's
// instance_home.
func TestOneGateHoweverItsPathIsSpelled(t *testing.T) {
	g := newGate(t)
	root := filepath.Dir(g.home)
	if err := errors.Join(os.MkdirAll(g.home, 0o700), os.Symlink(root, root+"-link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	for _, spelling := range []string{
		g.home, g.home + "/", root + "/./.approval", root + "//.approval", g.home + "/../.approval",
		root + "-link/.approval", ".approval", "./.approval/.",
	} {
		o := g.options()
		o.Home = spelling
		l := mustAcquire(t, o)
		if rec := readRecord(t, g.record()); rec.InstanceHome != g.home {
			t.Errorf("%s: instance_home = %s", spelling, rec.InstanceHome)
		}
		_, err := Acquire(t.Context(), g.options())
		wantHeld(t, err)
		l.Release()
	}
}

func TestResolveHome(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(dir+"/nowhere", dir+"/dangling"), os.Symlink(dir+"/loop", dir+"/loop"),
		os.WriteFile(dir+"/file", nil, 0o600), os.Symlink(dir, dir+"/self")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ in, want, refused string }{
		{dir + "/self/not/yet", dir + "/not/yet", ""},
		{dir + "/a~b/~", dir + "/a~b/~", ""},
		{"~", "", "not expanded"},
		{"~/gate", "", "not expanded"},
		{"~root/gate", "", "not expanded"},
		{"", "", "no home"},
		{dir + "/dangling", "", "resolved"},
		{dir + "/dangling/gate", "", "resolved"},
		{dir + "/loop/gate", "", "resolved"},
		{dir + "/file/gate", "", "resolved"},
	} {
		got, err := ResolveHome(tt.in)
		if tt.refused == "" {
			if got != tt.want || err != nil {
				t.Errorf("ResolveHome(%q) = %q, %v", tt.in, got, err)
			}
			continue
		}
		var u *UnavailableError
		if !errors.As(err, &u) || u.Path != tt.in || !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("ResolveHome(%q) = %q, %v; want %q", tt.in, got, err, tt.refused)
		}
	}
}
