//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTroubleIsTold blocks the bot: the waiting program, the status and the operator's command are told, and that it is over.
func TestTroubleIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, top(`on_trouble = ["DIR/page me", "--team", "ops"]`))
	told := filepath.Join(w.dir, "told")
	script := fmt.Sprintf("#!/bin/sh\n{ echo \"$@\"; /usr/bin/env; } >>%q\n", told)
	w.must(os.WriteFile(filepath.Join(w.dir, "page me"), []byte(script), 0o700))
	w.env = append(w.env, "NOTIFY_SOCKET="+filepath.Join(w.dir, "notify"))
	daemon := w.up()
	phone := w.telegram.Phone(alice)
	phone.Block()
	waiter := w.start("request", "deploy:api#41", "--class", "deploy.production", "--summary", "s", "--wait", "--json")
	asked := time.Now()
	w.until("the waiting program to be told", func() bool { return strings.Contains(waiter.stderr.String(), "deploy:api#41: not delivered yet") })
	if took := time.Since(asked); took > 10*time.Second {
		t.Errorf("told after %v", took)
	}
	if !strings.Contains(waiter.stderr.String(), "(chat-unreachable)") {
		t.Errorf("stderr: %s", waiter.stderr.String())
	}
	short := w.run(6, "wait", "deploy:api#41", "--timeout", "100ms", "--json")
	var end struct {
		State    string
		Troubles []struct{ Code, Text, Since string }
	}
	w.must(json.Unmarshal([]byte(short.stdout.String()), &end))
	if end.State != "pending" || len(end.Troubles) != 2 || end.Troubles[0].Code != "undelivered" || end.Troubles[1].Code != "chat-unreachable" || end.Troubles[0].Since == "" {
		t.Errorf("wait --json: %s", short.stdout.String())
	}
	if text := w.run(0, "status").stdout.String(); !strings.Contains(text, "trouble     chat-unreachable: ") {
		t.Errorf("status:\n%s", text)
	}
	w.until("the operator to be told", func() bool {
		text, _ := os.ReadFile(told) //nolint:errcheck // it is not there yet
		return strings.Contains(string(text), "--team ops begin chat-unreachable ") && strings.Contains(string(text), "PATH=")
	})

	phone.Unblock()
	card := w.card(daemon, "deploy:api#41")
	w.until("the waiting program to hear that it is over", func() bool { return strings.Contains(waiter.stderr.String(), "deploy:api#41: delivered now") })
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 || !strings.Contains(waiter.stdout.String(), `"troubles":[]`) {
		t.Errorf("exit code %d: %s", code, waiter.stdout.String())
	}
	w.until("the operator to be told that it is over", func() bool {
		text, err := os.ReadFile(told)
		w.must(err)
		return strings.Contains(string(text), "--team ops end chat-unreachable ")
	})
	text, err := os.ReadFile(told)
	w.must(err)
	for _, secret := range append(w.secrets, "NOTIFY_SOCKET", "XDG_", "HOME=") {
		if strings.Contains(string(text), secret) {
			t.Errorf("the command was given %s:\n%s", secret, text)
		}
	}
	if n := strings.Count(string(text), "begin"); strings.Count(string(text), "\n--team ops ")+1 != 2 {
		t.Errorf("told %d beginnings:\n%s", n, text)
	}
}
