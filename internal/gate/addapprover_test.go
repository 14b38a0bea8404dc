package gate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/durable"
)

const oneApprover = `# a comment of mine
home = "/tmp/nowhere"
[telegram]
chat_id = -5   # the team
[[approvers]]
id = "alice"
telegram_user_id = 111
[requests]
quorum = 1`

func configFile(t *testing.T, text string) Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "g.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := LoadConfig("g", path)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAnApproverIsAddedAndNothingElseChanges(t *testing.T) {
	cfg := configFile(t, oneApprover)
	if err := os.Chmod(cfg.File, 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link.toml")
	if err := os.Symlink(cfg.File, link); err != nil {
		t.Fatal(err)
	}
	real := cfg.File
	cfg, err := LoadConfig("g", link)
	if err != nil {
		t.Fatal(err)
	}
	next, err := AddApprover(durable.FS{}, cfg, Approver{ID: "bob", TelegramUserID: 222})
	if err != nil {
		t.Fatal(err)
	}
	if text := content(t, real); !strings.HasPrefix(text, oneApprover+"\n") || !strings.Contains(text, `id = "bob"`) {
		t.Errorf("the file is\n%s", text)
	}
	read, err := LoadConfig("g", link)
	if err != nil || read.Hash != next.Hash || len(read.Approvers) != 2 || read.Approvers[1].Actor() != "human:bob" {
		t.Errorf("read again: %+v, %v; answered %s", read, err, next.Hash)
	}
	if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().IsRegular() {
		t.Errorf("the link is no link any more: %v", err)
	}
}

func TestAnApproverIsNotAdded(t *testing.T) {
	inline := strings.Replace(oneApprover, "home =", `approvers = [{id = "alice", telegram_user_id = 111}]`+"\nhome =", 1)
	inline = strings.Replace(inline, "[[approvers]]\nid = \"alice\"\ntelegram_user_id = 111\n", "", 1)
	for name, c := range map[string]struct {
		text string
		add  Approver
		fsys func(cfg Config) durable.FS
	}{
		"the same id":   {oneApprover, Approver{ID: "bob", TelegramUserID: 111}, nil},
		"the same name": {oneApprover, Approver{ID: "alice", TelegramUserID: 222}, nil},
		"a group":       {oneApprover, Approver{ID: "bob", TelegramUserID: -5}, nil},
		"no name":       {oneApprover, Approver{ID: "b\"ob", TelegramUserID: 222}, nil},
		"inline array":  {inline, Approver{ID: "bob", TelegramUserID: 222}, nil},
		"a full disk": {oneApprover, Approver{ID: "bob", TelegramUserID: 222}, func(Config) durable.FS {
			return durable.FS{Hook: func(op, _ string) error {
				if op == "config.rename" {
					return errors.New("no space")
				}
				return nil
			}}
		}},
	} {
		cfg := configFile(t, c.text)
		fsys := durable.FS{}
		if c.fsys != nil {
			fsys = c.fsys(cfg)
		}
		if _, err := AddApprover(fsys, cfg, c.add); err == nil {
			t.Errorf("%s: no error", name)
		}
		if got := content(t, cfg.File); got != c.text {
			t.Errorf("%s: the file became\n%s", name, got)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(cfg.File), "*")); len(left) != 1 {
			t.Errorf("%s: left behind %q", name, left)
		}
	}
}

// Somebody who edits the file at the same time, before the writing or in the middle of it, loses nothing.
func TestAnEditMeanwhileIsKept(t *testing.T) {
	edited := strings.Replace(oneApprover, "quorum = 1", "max_pending = 7", 1)
	for _, when := range []string{"before", "config.write"} {
		cfg := configFile(t, oneApprover)
		edit := func() {
			if err := os.WriteFile(cfg.File, []byte(edited), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if when == "before" {
			edit()
		}
		done := false
		_, err := AddApprover(durable.FS{Hook: func(op, _ string) error {
			if op == when && !done {
				done = true
				edit()
			}
			return nil
		}}, cfg, Approver{ID: "bob", TelegramUserID: 222})
		if err == nil || !strings.Contains(err.Error(), "changed meanwhile") || content(t, cfg.File) != edited {
			t.Errorf("%s: %v, and the file is\n%s", when, err, content(t, cfg.File))
		}
	}
}
