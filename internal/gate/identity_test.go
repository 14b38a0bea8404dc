package gate

import "testing"

func TestIdentity(t *testing.T) {
	daemon := Identity{Name: "default", Homes: []string{"/link/.approval", "/real/.approval"}, Configs: []string{"/etc/approvald/default.toml"}}
	for _, tt := range []struct {
		name string
		mine Identity
		same bool
	}{
		{"the name alone is known", Identity{Name: "default"}, true},
		{"another name", Identity{Name: "prod"}, false},
		{"same home", Identity{Name: "default", Homes: []string{"/real/.approval"}}, true},
		{"another name, same home", Identity{Name: "prod", Homes: []string{"/real/.approval"}}, false},
		{"another home", Identity{Name: "default", Homes: []string{"/prod/.approval"}}, false},
		{"another home, written into the same file", Identity{Name: "default", Homes: []string{"/prod/.approval"}, Configs: daemon.Configs}, false},
		{"another derived home, same file", Identity{Name: "default", Homes: []string{"/me/.approval"}, Configs: daemon.Configs, homeDerived: true}, true},
		{"another derived home, another file", Identity{Name: "default", Homes: []string{"/me/.approval"}, Configs: []string{"/me/default.toml"}, homeDerived: true}, false},
	} {
		if got := tt.mine.IsServedBy(daemon); got != tt.same {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.same)
		}
	}
	if (Identity{Name: "default", Homes: []string{"/a"}}).IsServedBy(Identity{Name: "default"}) {
		t.Error("a daemon that does not say which home it serves was taken for ours")
	}
}
