package gate

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func uid(n uint32) *uint32 { return &n }

func TestFourEyesCountOnlyOthers(t *testing.T) {
	alice, bob := Approver{ID: "alice", TelegramUserID: 1, UID: uid(1000)}, Approver{ID: "bob", TelegramUserID: 2}
	for _, tt := range []struct {
		name   string
		change func(*NewRequest)
		rule   ClassRule
		code   string
	}{
		{"somebody else asks for two", func(r *NewRequest) { r.Quorum = 2 }, ClassRule{FourEyes: true}, ""},
		{"an approver's name", func(r *NewRequest) { r.Requester, r.Quorum = "agent:Alice", 2 }, ClassRule{FourEyes: true}, CodeInvalidRequest},
		{"on behalf of an approver", func(r *NewRequest) { r.OnBehalfOf, r.Quorum = "human:bob", 2 }, ClassRule{FourEyes: true}, CodeInvalidRequest},
		{"an approver's user id", func(r *NewRequest) { r.Peer, r.Quorum = &Peer{UID: 1000}, 2 }, ClassRule{FourEyes: true}, CodeInvalidRequest},
		{"an approver's user id, by the files", func(r *NewRequest) { r.WriterUID, r.Quorum = uid(1000), 2 }, ClassRule{FourEyes: true}, CodeInvalidRequest},
		{"one of two is left", func(r *NewRequest) { r.OnBehalfOf = "human:bob" }, ClassRule{FourEyes: true}, ""},
		{"nobody is left", func(r *NewRequest) { r.OnBehalfOf = "human:bob" }, ClassRule{FourEyes: true, Approvers: []string{"bob"}}, CodeInvalidRequest},
		{"no four eyes", func(r *NewRequest) { r.OnBehalfOf, r.Quorum = "human:bob", 2 }, ClassRule{}, ""},
		{"no person", func(r *NewRequest) { r.OnBehalfOf = "agent:bob" }, ClassRule{}, CodeInvalidRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
			cfg.Approvers = []Approver{alice, bob}
			tt.rule.Class = "*"
			cfg.Rules = []ClassRule{tt.rule}
			g := openGate(t, cfg, OpenOptions{})
			in := newRequest("k")
			tt.change(&in)
			r, _, err := g.Create(t.Context(), in)
			if ErrorCode(err) != tt.code {
				t.Fatalf("code %q (%v), want %q", ErrorCode(err), err, tt.code)
			}
			if err == nil && r.OnBehalfOf != in.OnBehalfOf {
				t.Errorf("the log says on behalf of %q", r.OnBehalfOf)
			}
		})
	}
}

// TestOnBehalfOfIsNoRetry: the same key for another person is refused, and not taken for the request that exists.
func TestOnBehalfOfIsNoRetry(t *testing.T) {
	g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{Now: time.Now})
	mustCreate(t, g, newRequest("k"))
	in := newRequest("k")
	in.OnBehalfOf = "human:alice"
	_, _, err := g.Create(t.Context(), in)
	if ErrorCode(err) != CodeRequestConflict {
		t.Errorf("code %q", ErrorCode(err))
	}
	if err == nil || !strings.Contains(err.Error(), `on behalf of none, not "human:alice"`) {
		t.Errorf("it does not say what differs: %v", err)
	}
}

func TestUserIDsOfApprovers(t *testing.T) {
	doc := func(a, b string) string {
		return "home = \"/srv/gate\"\n[telegram]\nchat_id = 5\n[[approvers]]\nid = \"alice\"\ntelegram_user_id = 1\n" + a +
			"\n[[approvers]]\nid = \"bob\"\ntelegram_user_id = 2\n" + b + "\n"
	}
	cfg, err := ParseConfig("prod", "f", []byte(doc("uid = 0", "")))
	if err != nil || cfg.Approvers[0].UID == nil || *cfg.Approvers[0].UID != 0 || cfg.Approvers[1].UID != nil {
		t.Fatalf("%+v, %v", cfg.Approvers, err)
	}
	for _, tt := range []struct{ a, b, want string }{
		{"uid = -1", "", "7 approvers[0].uid: -1 is no user id"},
		{`uid = "alice"`, "", "7 approvers[0].uid: is"},
		{"uid = 7", "uid = 7", "11 approvers[1].uid: 7 belongs to"},
		{"uid = 4294967295", "", "4294967295 is no user id"},
	} {
		if got := strings.Join(faultLines(t, doc(tt.a, tt.b)), "\n"); !strings.Contains(got, tt.want) {
			t.Errorf("%s %s: faults %q, want %q", tt.a, tt.b, got, tt.want)
		}
	}
}
