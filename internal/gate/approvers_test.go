package gate

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestNobodyIsAnApproverByDefault(t *testing.T) {
	const head = "home = \"/srv/gate\"\n"
	const tail = "[telegram]\nchat_id = 5\n"
	for _, approvers := range []string{"", "approvers = []\n", `approvers = [""]` + "\n", `approvers = " "` + "\n", `approvers = ","` + "\n",
		`approvers = "*"` + "\n", `approvers = ["@alice_ops"]` + "\n", "approvers = [111]\n", "approvers = [{}]\n",
		`approvers = [{id = "*", telegram_user_id = 5}]` + "\n", `approvers = [{id = "a", telegram_user_id = 777000}]` + "\n",
		`approvers = [{id = "a", telegram_user_id = 136817688}]` + "\n", `approvers = [{id = "a", telegram_user_id = 0}]` + "\n"} {
		got := faultLines(t, head+approvers+tail)
		if len(got) == 0 || !strings.Contains(strings.Join(got, " "), "approvers") {
			t.Errorf("%q: faults %q", approvers, got)
		}
	}
	_, err := ParseConfig("prod", "f", []byte(head+`approvers = ["@alice_ops"]`+"\n"+tail))
	if err == nil || !strings.Contains(err.Error(), "numeric user id") {
		t.Errorf("a user name is refused without naming the numeric id: %v", err)
	}
}

func TestRulesNarrowAndNeverWiden(t *testing.T) {
	doc := `home = "/srv/gate"
[telegram]
chat_id = 5
[[approvers]]
id = "alice"
telegram_user_id = 1
[[approvers]]
id = "bob"
telegram_user_id = 2
[[approvers]]
id = "carol"
telegram_user_id = 3
[requests]
ttl = "2h"
quorum = 2
[[rules]]
class = "deploy.production"
quorum = 3
ttl = "10m"
[[rules]]
class = "deploy.*"
quorum = 1
ttl = "9h"
approvers = ["bob", "alice"]
[[rules]]
class = "*.drop"
approvers = ["carol", "bob"]
`
	cfg, err := ParseConfig("prod", "f", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	alice, bob, carol := Approver{ID: "alice", TelegramUserID: 1}, Approver{ID: "bob", TelegramUserID: 2}, Approver{ID: "carol", TelegramUserID: 3}
	tests := []struct {
		class string
		want  Rule
	}{
		{"deploy.production", Rule{Pattern: "deploy.production", Quorum: 3, TTL: 10 * time.Minute, Approvers: []Approver{alice, bob, carol}}},
		{"deploy.staging", Rule{Pattern: "deploy.*", Quorum: 2, TTL: 2 * time.Hour, Approvers: []Approver{alice, bob}}},
		{"deploy.production.eu", Rule{Pattern: "deploy.*", Quorum: 2, TTL: 2 * time.Hour, Approvers: []Approver{alice, bob}}},
		{"db.table.drop", Rule{Pattern: "*.drop", Quorum: 2, TTL: 2 * time.Hour, Approvers: []Approver{bob, carol}}},
		{"deploy", Rule{Quorum: 2, TTL: 2 * time.Hour, Approvers: []Approver{alice, bob, carol}}},
		{"deployment.x", Rule{Quorum: 2, TTL: 2 * time.Hour, Approvers: []Approver{alice, bob, carol}}},
	}
	for _, tt := range tests {
		if got := cfg.Rule(tt.class); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.class, got, tt.want)
		}
	}
	if r := cfg.Rule("deploy.x"); r.Allows(carol) || !r.Allows(alice) || r.Allows(Approver{ID: "alice", TelegramUserID: 9}) {
		t.Error("Allows does not follow the rule's approvers")
	}
	if _, ok := cfg.ApproverByUserID(0); ok {
		t.Error("id 0 is an approver")
	}
	if a, ok := cfg.ApproverByUserID(2); !ok || a != bob {
		t.Errorf("id 2 is %v", a)
	}
	if a, ok := cfg.ApproverByActor("human:carol"); !ok || a != carol {
		t.Errorf("human:carol is %v", a)
	}
}
