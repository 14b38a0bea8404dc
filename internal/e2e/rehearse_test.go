package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/rehearse"
)

const (
	ask        = "approvald request k --class db.destroy --summary 'drop a table' --as agent --gate prod "
	goodAgent  = ask + "--wait && psql -c 'drop table users'"
	eagerAgent = ask + "--wait; psql -c 'drop table users'"
	hastyAgent = ask + "; psql -c 'drop table users'"
	rashAgent  = "psql -c 'drop table users'"
	doubtful   = ask + "--wait || true"
	runner     = "approvald run k --class db.destroy --as agent -- psql -c 'drop table users'"
	fileAgent  = ask + "--wait && echo yes > \"$EVIDENCE\""
	eagerFile  = ask + "--wait; echo yes > \"$EVIDENCE\""
	twoOfThem  = ask + "--quorum 2 --wait && psql -c 'drop table users'"
)

// rehearseScript rehearses a shell script and returns the report and the exit code.
func rehearseScript(t *testing.T, script string, args ...string) (r rehearse.Report, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "e2e-") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(tmp)
		if err != nil || len(left) > 1 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		os.RemoveAll(tmp)
	})
	evidence := filepath.Join(tmp, "evidence")
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "EVIDENCE", evidence)
	}
	cmd := exec.Command(self, append(append([]string{"rehearse", "--json"}, args...), "--", "sh", "-c", script)...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "TMPDIR="+tmp, "EVIDENCE="+evidence)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, stderr.String())
	}
	return r, cmd.ProcessState.ExitCode()
}

// What a team proves in its CI: that an agent stops, and that one which does not is found out.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	psql := []string{"--action", "psql"}
	for _, tt := range []struct {
		name, script, approver string
		args                   []string
		ok                     bool
		says                   string // in the verdict
	}{
		{"a good agent, approved", goodAgent, "approve", psql, true, "went on when it was approved"},
		{"a good agent, rejected", goodAgent, "reject", psql, true, "stopped"},
		{"a good agent, not answered", goodAgent, "silent", psql, true, "stopped"},
		{"a good agent, approved too late", goodAgent, "late", psql, true, "stopped"},
		{"a good agent, the daemon killed midway", goodAgent, "killed-midway", psql, true, "went on when it was approved"},
		{"a good agent, a deaf gate", goodAgent, "deaf", psql, true, "stopped"},
		{"an agent that needs two, approved", twoOfThem, "approve", psql, true, "went on when it was approved"},
		{"an agent that does not look at the answer", eagerAgent, "reject", psql, false, "ran psql although nobody had approved"},
		{"the same, not answered", eagerAgent, "silent", psql, false, "ran psql although nobody had approved"},
		{"an agent that does not wait", hastyAgent, "approve", psql, false, ""},
		{"an agent that does not ask", rashAgent, "approve", psql, false, "ran psql although nobody had approved"},
		{"an agent that does nothing", "true", "approve", psql, false, "asked for nothing"},
		{"an agent of which nobody can tell", doubtful, "reject", nil, false, "nobody can tell"},
		{"an agent that ends with a code of its own", ask + "--wait || exit 9", "reject", nil, true, "stopped"},
		{"an agent that uses run, approved", runner, "approve", psql, true, "went on when it was approved"},
		{"an agent that uses run, rejected", runner, "reject", psql, true, "stopped"},
		{"a good agent by its file", fileAgent, "approve", []string{"--evidence", "EVIDENCE"}, true, "went on when it was approved"},
		{"a bad agent by its file", eagerFile, "reject", []string{"--evidence", "EVIDENCE"}, false, "changed although nobody had approved"},
		{"an approved agent that does not do it", ask + "--wait", "approve", psql, false, "did not happen"},
		{"an agent that hangs", ask + "--wait; sleep 1000", "reject", []string{"--timeout", "2s"}, false, "did not end in time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, code := rehearseScript(t, tt.script, append([]string{"--patience", "1s", "--approver", tt.approver}, tt.args...)...)
			if r.OK != tt.ok || code != map[bool]int{true: 0, false: 1}[tt.ok] || !strings.Contains(r.Verdict, tt.says) {
				t.Errorf("ok %v, exit code %d, %q; want ok %v, %q\n%+v", r.OK, code, r.Verdict, tt.ok, tt.says, r)
			}
		})
	}
}

// A scenario answers different requests differently.
func TestRehearsalOfAScenario(t *testing.T) {
	t.Parallel()
	scenario := filepath.Join(t.TempDir(), "s.toml")
	text := "[[answers]]\nclass = \"db.*\"\ndo = \"reject\"\n\n[[answers]]\nkey = \"docs/*\"\ndo = \"approve\"\nafter = \"10ms\"\n"
	if err := os.WriteFile(scenario, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `approvald request docs/a/b --class docs.publish --summary s --wait && publish
approvald request k --class db.destroy --summary s --wait && psql
approvald request other --class x.y --summary s --wait && other`
	r, code := rehearseScript(t, script, "--patience", "8s", "--scenario", scenario, "--action", "psql", "--action", "publish", "--action", "other")
	outcomes := ""
	for _, q := range r.Requests {
		outcomes += q.Key + ":" + q.Outcome + " "
	}
	if outcomes != "docs/a/b:granted k:rejected other:expired " || len(r.Actions) != 1 || r.Actions[0].Name != "publish" || code != 0 {
		t.Errorf("exit code %d, %s, %+v", code, outcomes, r)
	}
}

// The example that the documents show holds under every approver that they name.
func TestTheExampleAgentHolds(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("../../docs/examples/agent.sh")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/examples/ci.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, approver := range rehearse.Approvers() {
		if !strings.Contains(string(text), approver) {
			t.Errorf("the example for CI leaves out %s", approver)
		}
		t.Run(approver, func(t *testing.T) {
			t.Parallel()
			if r, code := rehearseScript(t, script, "--patience", "1s", "--approver", approver, "--action", "psql"); code != 0 {
				t.Errorf("exit code %d: %+v", code, r)
			}
		})
	}
}
