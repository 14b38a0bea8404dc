package gate

import (
	"slices"
	"strings"
	"testing"
)

func TestHomeIsDerivedFromTheEnvironment(t *testing.T) {
	doc := []byte(strings.TrimPrefix(smallConfig, "home = \"/srv/gate\"\n"))
	for _, tt := range []struct{ state, xdg, home, want string }{
		{"/var/lib/approvald/prod", "/x", "/home/u", "/var/lib/approvald/prod/.approval"},
		{"/var/lib/a:/var/lib/b", "", "/home/u", "/var/lib/a/.approval"},
		{"", "/x", "/home/u", "/x/approvald/prod/.approval"},
		{"", "", "/home/u", "/home/u/.local/state/approvald/prod/.approval"},
		{"relative", "relative", "/home/u", "/home/u/.local/state/approvald/prod/.approval"},
		{"", "", "", ""},
	} {
		t.Setenv("STATE_DIRECTORY", tt.state)
		t.Setenv("XDG_STATE_HOME", tt.xdg)
		t.Setenv("HOME", tt.home)
		cfg, err := ParseConfig("prod", "f", doc)
		if (err == nil) != (tt.want != "") || cfg.Home != tt.want {
			t.Errorf("%+v: %q, %v", tt, cfg.Home, err)
		}
	}
}

func TestSocketStandsWhereTheEnvironmentSays(t *testing.T) {
	cfg := Config{Gate: "prod", Home: "/srv/gate"}
	for _, tt := range []struct{ runtime, xdg, want string }{
		{"/run/approvald/prod", "/run/user/7", "/run/approvald/prod/approvald.sock"},
		{"", "/run/user/7", "/run/user/7/approvald/prod.sock"},
		{"", "", "/srv/gate/run/approvald.sock"},
		{"relative", "relative", "/srv/gate/run/approvald.sock"},
	} {
		t.Setenv("RUNTIME_DIRECTORY", tt.runtime)
		t.Setenv("XDG_RUNTIME_DIR", tt.xdg)
		p := cfg.Paths()
		if p.Socket != tt.want || !slices.Contains(p.Sockets, "/srv/gate/run/approvald.sock") {
			t.Errorf("%+v: %q of %q", tt, p.Socket, p.Sockets)
		}
		if slices.Sort(p.Sockets); len(slices.Compact(p.Sockets)) != len(p.Sockets) {
			t.Errorf("%+v: a socket twice in %q", tt, p.Sockets)
		}
	}
}
