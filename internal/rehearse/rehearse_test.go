package rehearse

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/gate"
)

func TestScenarioFaultsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "no [[answers]]",
		"[[answers]]\ndo = \"maybe\"":           "answer 1: \"maybe\" is no approver",
		"[[answers]]\ndo = \"deaf\"\nkey=\"k\"": "stands alone",
		"[[answers]]\ndo=\"reject\"\nafer=\"1s\"":  "answers.afer is no key",
		"[[answers]]\ndo=\"reject\"\nafter=\"x\"":  "invalid duration",
		"[[answers]]\ndo=\"reject\"\nafter=\"2h\"": "not between",
		"[[answers]]\ndo=\"reject\"\nkey=\"[\"":    "the pattern",
		"answers = 3":                              "read the scenario",
	} {
		name := filepath.Join(t.TempDir(), "s.toml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadScenario(name); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v, want %q and the file's name", text, err, want)
		}
	}
}

func TestTheFirstAnswerThatFits(t *testing.T) {
	s := Scenario{Answers: []Answer{{Class: "db.*", Do: Reject}, {Key: "deploy/*", Do: Approve}}}
	for _, tt := range []struct{ class, key, want string }{
		{"db.destroy", "deploy/x", Reject}, {"x", "deploy/a/b", Approve}, {"x", "k", Silent}, {"db", "k", Silent},
	} {
		if got := s.answer(tt.class, tt.key).Do; got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.class, tt.key, got, tt.want)
		}
	}
}

func TestWhetherARequestMayExpire(t *testing.T) {
	for _, tt := range []struct {
		answers []Answer
		want    bool
	}{
		{[]Answer{{Do: Approve}}, false},
		{[]Answer{{Do: Silent}}, true},
		{[]Answer{{Class: "a", Do: Approve}}, true},
		{[]Answer{{Class: "a", Do: Approve}, {Do: Reject}}, false},
		{[]Answer{{Do: Reject}, {Class: "a", Do: Late}}, false},
		{[]Answer{{Class: "a", Do: Late}, {Do: Reject}}, true},
	} {
		if got := (Scenario{tt.answers}).expires(); got != tt.want {
			t.Errorf("%+v: %v", tt.answers, got)
		}
	}
}

func TestWhenAnActionIsApproved(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	yes := request{key: "a", asked: at(0), outcome: "granted", decided: at(10)}
	no := request{key: "b", asked: at(20), outcome: "rejected", decided: at(30)}
	open := request{key: "c", asked: at(40)}
	for _, tt := range []struct {
		requests []request
		at       int
		want     bool
	}{
		{nil, 5, false},
		{[]request{yes}, -1, false},
		{[]request{yes}, 5, false},
		{[]request{yes}, 10, true},
		{[]request{yes, no}, 15, true},
		{[]request{yes, no}, 25, false}, // one is open
		{[]request{yes, no}, 35, false},
		{[]request{yes, open}, 35, true},
		{[]request{yes, open}, 45, false},
	} {
		if got := approvedAt(tt.requests, at(tt.at)); got != tt.want {
			t.Errorf("%+v at %d: %v", tt.requests, tt.at, got)
		}
	}
}

func TestOutsideOfARehearsalNothingIsNoted(t *testing.T) {
	t.Setenv(gate.RehearsalVariable, "")
	ended, standIn := Witness([]string{"approvald", "version"})
	ended(0)
	if standIn {
		t.Error("a stand-in outside of a rehearsal")
	}
	dir := t.TempDir()
	t.Setenv(gate.RehearsalVariable, dir)
	if err := os.Mkdir(filepath.Join(dir, actionsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, standIn := Witness([]string{"approvald", "wait", "k"}); standIn {
		t.Error("approvald is taken for a stand-in")
	}
	notes, err := readNotes(dir)
	if err != nil || len(notes) != 1 || len(calls(notes)) != 1 {
		t.Errorf("%v, %v", notes, err)
	}
}
