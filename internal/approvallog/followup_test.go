package approvallog

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const followedUp = `{"approvald":{"follow_up":"ff"},"payload_hash":"aa"}`

// Of all ends only a completed execution of a grant makes the follow-up due, and asking for it, by whomever, ends that.
func TestAFollowUpIsDueFromTheCompletionUntilItIsAskedFor(t *testing.T) {
	tests := []struct {
		name  string
		steps []string
		want  []string
	}{
		{"pending", nil, nil},
		{"granted", []string{"!approval.granted"}, nil},
		{"rejected", []string{"!approval.rejected", "execution.completed"}, nil},
		{"expired", []string{"approval.expired", "execution.completed"}, nil},
		{"withdrawn", []string{"approval.withdrawn"}, nil},
		{"revoked", []string{"!approval.granted", "!approval.revoked", "execution.completed"}, nil},
		{"started", []string{"!approval.granted", "execution.started"}, nil},
		{"failed", []string{"!approval.granted", "execution.started", "execution.failed"}, nil},
		{"failed, then completed", []string{"!approval.granted", "execution.started", "execution.failed", "execution.completed"}, nil},
		{"completed", []string{"!approval.granted", "execution.started", "execution.completed"}, []string{"k/then-1"}},
		{"completed twice", []string{"!approval.granted", "execution.started", "execution.completed", "execution.completed"}, []string{"k/then-1"}},
		{"completed by a writer that records no start", []string{"!approval.granted", "execution.completed"}, []string{"k/then-1"}},
		{"asked for", []string{"!approval.granted", "execution.completed", "approval.requested k/then-1"}, nil},
		{"asked for too early", []string{"approval.requested k/then-1", "!approval.granted", "execution.completed"}, nil},
		{"asked for, another end", []string{"!approval.granted", "execution.completed", "approval.requested k/then-1", "execution.completed"}, nil},
		{"another cycle", []string{"!approval.granted", "execution.completed", "approval.requested k"}, []string{"k/then-1"}},
		{"the end of what ran over a new cycle", []string{"!approval.granted", "execution.started", "approval.requested k", "execution.completed"}, []string{"k/then-1"}},
		{"both cycles", []string{"!approval.granted", "execution.started", "approval.requested k", "execution.completed", "!approval.granted", "execution.completed"}, []string{"k/then-1", "k/then-4"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h history
			h.add(EventRequested, "agent:ci", "k", followedUp)
			for _, step := range tt.steps {
				event, key, _ := strings.Cut(step, " ")
				actor, payload := "agent:ci", ""
				if name, human := strings.CutPrefix(event, "!"); human {
					event, actor = name, "human:alice"
				}
				if event == EventRequested {
					payload = followedUp
				}
				if key == "" {
					key = "k"
				}
				h.add(event, actor, key, payload)
			}
			var got []string
			q := h.fold(t)
			for _, r := range q.Due() {
				got = append(got, r.FollowUpKey)
				if r.State != StateCompleted || r.Requester != "agent:ci" || r.FollowUp != "ff" || FollowUpKey("k", r.Seq) != r.FollowUpKey {
					t.Errorf("due: %+v", r)
				}
				if again, ok := q.DueFor(r.FollowUpKey); !ok || again.Seq != r.Seq {
					t.Errorf("DueFor(%s): %+v, %v", r.FollowUpKey, again, ok)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("due: %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheKeyOfAFollowUpIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parent := rapid.StringN(1, 256, 256).Draw(t, "key")
		cycle := rapid.Int64Range(1, 1<<53).Draw(t, "cycle")
		key := FollowUpKey(parent, cycle)
		if len(key) > 256 || key == FollowUpKey(parent, cycle+1) || key == FollowUpKey(parent+"x", cycle) {
			t.Fatalf("%q", key)
		}
		gotParent, gotCycle, ok := ParseFollowUpKey(key)
		if !ok || gotParent != "" && (gotParent != parent || gotCycle != cycle) || gotParent == "" && len(parent) < 200 {
			t.Fatalf("%q is read as %q, %d, %v", key, gotParent, gotCycle, ok)
		}
	})
	for _, key := range []string{"", "k", "/then-1", "k/then-", "k/then-0", "k/then-01", "k/then--1", "k/then-1 ", "k/then-+1", "then-1", "then-" + strings.Repeat("a", 63) + "-1"} {
		if _, _, ok := ParseFollowUpKey(key); ok {
			t.Errorf("%q is taken for the key of a follow-up", key)
		}
	}
}

// askingThen asks with a follow-up, finish executes what was granted.
func askingThen(key string) Draft {
	d := asking(key)
	d.Payload = map[string]any{"class": "c", "payload_hash": "aa", "approvald": map[string]any{"follow_up": "ff"}}
	return d
}

func executing(event, key string) Draft {
	return Draft{Event: event, Actor: "agent:ci", Task: "t", ActionKey: key}
}

func dueKeys(t testing.TB, l *Log, q *Requests) (keys []string) {
	t.Helper()
	if err := l.View(func() {
		for _, r := range q.Due() {
			keys = append(keys, r.FollowUpKey)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

// What is due is known after a start by a snapshot, and after one that reads the whole log, also when the parent has long left memory.
func TestWhatIsDueSurvivesARestart(t *testing.T) {
	path := logPath(t)
	home := filepath.Dir(filepath.Dir(path))
	open := func(change ...func(*Options)) (*Log, *Requests) {
		q := NewRequests()
		q.room = 2
		change = append(change, func(o *Options) { o.Fold, o.Snapshot = q, filepath.Join(home, "daemon", "snapshot.json") })
		return openTest(t, path, change...), q
	}
	l, q := open()
	for i := range 6 {
		key := fmt.Sprint("k", i)
		appendTo(t, l, askingThen(key), deciding(EventGranted, key))
	}
	for i := range 6 {
		if event := EventExecutionCompleted; i != 2 {
			appendTo(t, l, executing(event, fmt.Sprint("k", i)))
		} else {
			appendTo(t, l, executing(EventExecutionFailed, "k2"))
		}
	}
	appendTo(t, l, asking("k3/then-7"), asking("k0"))
	want := []string{"k0/then-1", "k1/then-3", "k4/then-9", "k5/then-11"}
	if got := dueKeys(t, l, q); !slices.Equal(got, want) {
		t.Fatalf("due: %q, want %q", got, want)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, q = open()
	if got := dueKeys(t, l, q); !slices.Equal(got, want) {
		t.Errorf("due after the log was read: %q, want %q", got, want)
	}
	if err := l.WriteSnapshot(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, q = open(failOnNotice(t))
	if got := dueKeys(t, l, q); !slices.Equal(got, want) {
		t.Errorf("due after the snapshot: %q, want %q", got, want)
	}
	// The index leads no longer to a cycle that many others came after. Then the log is read.
	for range 10 {
		appendTo(t, l, asking("k0"), deciding(EventRejected, "k0"))
	}
	if err := errors.Join(l.WriteSnapshot(context.Background()), l.Close()); err != nil {
		t.Fatal(err)
	}
	l, q = open()
	if got := dueKeys(t, l, q); !slices.Equal(got, want) {
		t.Errorf("due after many other cycles: %q, want %q", got, want)
	}
	appendTo(t, l, asking("k4/then-9"))
	if got := dueKeys(t, l, q); !slices.Equal(got, []string{"k0/then-1", "k1/then-3", "k5/then-11"}) {
		t.Errorf("due after one was asked for: %q", got)
	}
}

// A completed request whose follow-up is due can be carried over into another segment, and one that was archived before its execution is
// found there.
func TestWhatIsDueSurvivesAnArchive(t *testing.T) {
	path := logPath(t)
	l, q := openRequests(t, path)
	appendTo(t, l, askingThen("done"), deciding(EventGranted, "done"), executing(EventExecutionStarted, "done"), executing(EventExecutionCompleted, "done"),
		askingThen("later"), deciding(EventGranted, "later"))
	c := cutting(q)
	c.Carry = func() ([]Draft, error) { return q.CarryOver("done") }
	if _, err := l.Cut(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	if got := dueKeys(t, l, q); !slices.Equal(got, []string{"done/then-1"}) {
		t.Errorf("due after the archive: %q", got)
	}
	// As a program that knows nothing of segments records it.
	appendTo(t, l, executing(EventExecutionCompleted, "later"))
	want := []string{"done/then-1", "later/then-5"}
	if got := dueKeys(t, l, q); !slices.Equal(got, want) {
		t.Errorf("due after the execution: %q, want %q", got, want)
	}
	again, q := openRequests(t, path)
	if got := dueKeys(t, again, q); !slices.Equal(got, want) {
		t.Errorf("due after a restart: %q, want %q", got, want)
	}
}

func TestSemanticOfAFollowUp(t *testing.T) {
	for name, tt := range map[string]struct {
		steps []string
		want  string
	}{
		"in order":                   {[]string{"!approval.granted", "execution.completed", "approval.requested k/then-1"}, ""},
		"too early":                  {[]string{"!approval.granted", "approval.requested k/then-1"}, FindingFollowUpTooEarly},
		"after a failure":            {[]string{"!approval.granted", "execution.failed", "approval.requested k/then-1"}, FindingFollowUpTooEarly},
		"after a rejection":          {[]string{"!approval.rejected", "approval.requested k/then-1"}, FindingFollowUpTooEarly},
		"by another":                 {[]string{"!approval.granted", "execution.completed", "?approval.requested k/then-1"}, FindingFollowUpOfAnother},
		"of a cycle that was not":    {[]string{"approval.requested k/then-7"}, ""},
		"of what nobody asked for":   {[]string{"approval.requested other/then-1"}, ""},
		"of what has none":           {[]string{"approval.requested k2", "approval.requested k2/then-2"}, ""},
		"asked again after its time": {[]string{"!approval.granted", "execution.completed", "approval.requested k", "approval.requested k/then-1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var h history
			h.add(EventRequested, "agent:ci", "k", followedUp)
			for _, step := range tt.steps {
				event, key, _ := strings.Cut(step, " ")
				actor := "agent:ci"
				if name, human := strings.CutPrefix(event, "!"); human {
					event, actor = name, "human:alice"
				} else if name, other := strings.CutPrefix(event, "?"); other {
					event, actor = name, "agent:other"
				}
				if key == "" {
					key = "k"
				}
				h.add(event, actor, key, "")
			}
			got := ""
			s := newSemantic(func(f Finding) { got += f.Code })
			for _, r := range h.records {
				s.record(r, r.Seq, 0)
			}
			if got != tt.want {
				t.Errorf("findings %q, want %q", got, tt.want)
			}
		})
	}
}
