package dispatch

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func testNonce(b byte) Nonce { return Nonce{0: b, 15: 1} }

// tapCase is a good tap on a pending request; each test spoils one thing.
type tapCase struct {
	tap   Tap
	ev    Evidence
	rules testRules
}

func goodTap(v Verdict) tapCase {
	b := Button{Verdict: v, Nonce: testNonce(7)}
	return tapCase{
		tap: Tap{SenderID: alice.TelegramID, ChatID: -5, MessageID: 40, Data: b.Data()},
		ev: Evidence{
			Found: true,
			Delivery: Delivery{
				ID: "d1", Kind: KindCard, Cycle: CycleID{"k", 3}, NonceSHA256: b.Nonce.Sum(), PayloadHash: "h", ChatID: -5, MessageID: 40, Phase: PhaseSent,
			},
			Request: approvallog.Request{
				Key: "k", Task: "t", Class: "deploy.x", Requester: "agent:ci", State: approvallog.StatePending, PayloadHash: "h", Seq: 3,
				ExpiresAt: noon.Add(time.Hour), Quorum: 1,
			},
			Now: noon, Epoch: 9, ConfigHash: "cc",
		},
		rules: testRules{
			rule:    Rule{Quorum: 1, Approvers: []Approver{alice, bob}, RejectReasons: []string{"wrong environment"}},
			byClass: map[string]Rule{"other": {Quorum: 1, Approvers: []Approver{carol}}},
		},
	}
}

func (c tapCase) judge() Ruling {
	b, r, ok := Screen(c.tap, c.rules)
	if !ok {
		return r
	}
	return Judge(c.tap, b, c.ev, c.rules)
}

func TestJudge(t *testing.T) {
	decided := func(state approvallog.State, by string, channel string) func(*tapCase) {
		return func(c *tapCase) {
			c.ev.Request.State = state
			c.ev.Request.Decision = &approvallog.Decision{By: by, At: noon, Seq: 12, Channel: channel}
			if state != approvallog.StateRejected {
				c.ev.Request.Approvals = []approvallog.Approval{{By: by, At: noon}}
			}
		}
	}
	quorum := func(c *tapCase) { c.rules.rule.Quorum = 2 }
	for _, c := range []struct {
		name    string
		verdict Verdict
		spoil   func(*tapCase)
		want    Outcome
		records string // event of the log record, or of the note
		says    string
	}{
		{"approve", Approve, nil, OutcomeGranted, approvallog.EventGranted, "Granted"},
		{"reject", Reject, nil, OutcomeRejected, approvallog.EventRejected, "Rejected"},
		{"reasons", Because, nil, OutcomeReasons, "", "Choose a reason"},
		{"back", Back, nil, OutcomeBack, "", ""},
		{"inline tap", Approve, func(c *tapCase) { c.tap.ChatID, c.tap.MessageID = 0, 0 }, OutcomeGranted, approvallog.EventGranted, "Granted"},
		{"message id not known yet", Approve, func(c *tapCase) { c.ev.Delivery.MessageID = 0 }, OutcomeGranted, approvallog.EventGranted, ""},
		{"unknown copy", Approve, func(c *tapCase) { c.ev.Delivery.MessageID, c.ev.Delivery.Phase = 0, PhaseUnknown }, OutcomeGranted, approvallog.EventGranted, ""},

		{"malformed data", Approve, func(c *tapCase) { c.tap.Data = "1a:!!" }, OutcomeUnknownButton, "", "not known"},
		{"other version", Approve, func(c *tapCase) { c.tap.Data = "2" + c.tap.Data[1:] }, OutcomeUnknownButton, "", "not known"},
		{"unknown nonce", Approve, func(c *tapCase) { c.ev.Found = false }, OutcomeUnknownNonce, "", "not known"},
		{"other chat", Approve, func(c *tapCase) { c.tap.ChatID = -6 }, OutcomeWrongChat, "", "another message"},
		{"other message", Approve, func(c *tapCase) { c.tap.MessageID = 41 }, OutcomeWrongMessage, "", "another message"},
		{"stranger", Approve, func(c *tapCase) { c.tap.SenderID = 444 }, OutcomeStranger, "", "Not yours to decide"},
		{"nobody", Approve, func(c *tapCase) { c.tap.SenderID = 0 }, OutcomeStranger, "", "Not yours to decide"},
		{"bot", Approve, func(c *tapCase) { c.tap.Bot = true }, OutcomeNotAPerson, "", "Not yours to decide"},
		{"anonymous admin, even if configured", Approve, func(c *tapCase) {
			c.tap.SenderID = 1087968824
			c.rules.rule.Approvers = append(c.rules.rule.Approvers, Approver{ID: "anon", TelegramID: 1087968824})
		}, OutcomeNotAPerson, "", "Not yours to decide"},
		{"approver of another class", Approve, func(c *tapCase) { c.tap.SenderID = carol.TelegramID }, OutcomeNotForClass, "", "this class"},
		{"nobody configured", Approve, func(c *tapCase) { c.rules = testRules{} }, OutcomeStranger, "", "Not yours to decide"},
		{"four eyes", Approve, func(c *tapCase) { c.rules.rule.FourEyes, c.ev.Request.Requester = true, "agent:alice" }, OutcomeOwnRequest, "", "somebody else"},
		{"four eyes, on behalf of the approver", Approve, func(c *tapCase) { c.rules.rule.FourEyes, c.ev.Request.OnBehalfOf = true, "human:alice" }, OutcomeOwnRequest, "", "somebody else"},
		{"four eyes, asked by the approver's user id", Approve, func(c *tapCase) {
			uid := uint32(1000)
			c.rules.rule = Rule{Quorum: 1, FourEyes: true, Approvers: []Approver{{ID: "alice", TelegramID: 111, UID: &uid}, bob}}
			c.ev.Request.Peer = &approvallog.Peer{UID: 1000}
		}, OutcomeOwnRequest, "", "somebody else"},
		{"four eyes, asked by somebody else", Approve, func(c *tapCase) {
			c.rules.rule.FourEyes, c.ev.Request.OnBehalfOf, c.ev.Request.Peer = true, "human:bob", &approvallog.Peer{UID: 1000}
		}, OutcomeGranted, approvallog.EventGranted, ""},
		{"own request without four eyes", Approve, func(c *tapCase) { c.ev.Request.OnBehalfOf = "human:alice" }, OutcomeGranted, approvallog.EventGranted, ""},
		{"four eyes, the asker's own note counts for nothing", Approve, func(c *tapCase) {
			quorum(c)
			c.rules.rule.FourEyes, c.ev.Request.OnBehalfOf, c.ev.Notes = true, "human:bob", []Note{{Approver: "bob", PayloadHash: "h"}}
		}, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"other payload than shown", Approve, func(c *tapCase) { c.ev.Delivery.PayloadHash = "other" }, OutcomePayload, "", "not what the request holds"},

		{"button of an earlier asking", Approve, func(c *tapCase) { c.ev.Request.Seq = 8 }, OutcomeSuperseded, "", "earlier asking"},
		{"request not in the log", Approve, func(c *tapCase) { c.ev.Request = approvallog.Request{} }, OutcomeSuperseded, "", "earlier asking"},
		{"request whose record has taken the place of the one shown", Approve, func(c *tapCase) {
			c.ev.Delivery.Record, c.ev.Request.RecordHash = "shown", "another"
		}, OutcomeSuperseded, "", "earlier asking"},
		{"the very record", Approve, func(c *tapCase) { c.ev.Delivery.Record, c.ev.Request.RecordHash = "r", "r" }, OutcomeGranted, approvallog.EventGranted, ""},
		{"a delivery that names no record", Approve, func(c *tapCase) { c.ev.Request.RecordHash = "r" }, OutcomeGranted, approvallog.EventGranted, ""},
		{"another record was approved", Approve, func(c *tapCase) {
			quorum(c)
			c.ev.Request.RecordHash, c.ev.Notes = "r", []Note{{Approver: "bob", PayloadHash: "h", Record: "old"}}
		}, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"at the deadline", Approve, func(c *tapCase) { c.ev.Now = noon.Add(time.Hour) }, OutcomeExpired, approvallog.EventExpired, "expired at 13:00 UTC"},
		{"just before it", Approve, func(c *tapCase) { c.ev.Now = noon.Add(time.Hour - time.Millisecond) }, OutcomeGranted, approvallog.EventGranted, ""},
		{"expired on record", Approve, func(c *tapCase) { c.ev.Request.State = approvallog.StateExpired }, OutcomeExpired, "", "expired"},
		{"withdrawn", Approve, func(c *tapCase) { c.ev.Request.State = approvallog.StateWithdrawn }, OutcomeWithdrawn, "", "withdrawn"},
		{"granted by the same person", Approve, decided(approvallog.StateGranted, "human:alice", "telegram"), OutcomeDuplicate, "", "Granted"},
		{"used since", Approve, decided(approvallog.StateCompleted, "human:alice", "telegram"), OutcomeDuplicate, "", "Granted"},
		{"rejected by the same person", Reject, decided(approvallog.StateRejected, "human:alice", "telegram"), OutcomeDuplicate, "", "Rejected"},
		{"granted, then reject", Reject, decided(approvallog.StateGranted, "human:alice", "telegram"), OutcomeConflict, "", "Already decided: granted by alice at 12:00 UTC"},
		{"granted by another", Approve, decided(approvallog.StateGranted, "human:bob", "telegram"), OutcomeConflict, "", "Already decided: granted by bob"},
		{"rejected by another", Approve, decided(approvallog.StateRejected, "human:bob", "telegram"), OutcomeConflict, "", "Already decided: rejected by bob"},
		{"decided at a terminal", Approve, decided(approvallog.StateRejected, "human:bob", "terminal"), OutcomeConflict, "", "Decided elsewhere: rejected by bob at 12:00 UTC (terminal)"},
		{"revoked", Approve, func(c *tapCase) {
			decided(approvallog.StateRevoked, "human:alice", "telegram")(c)
			c.ev.Request.Ending = &approvallog.Ending{By: "human:bob", At: noon}
		}, OutcomeConflict, "", "granted and then revoked by bob"},

		{"first of two", Approve, quorum, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"quorum of the record", Approve, func(c *tapCase) { c.ev.Request.Quorum = 2 }, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"first of two again", Approve, func(c *tapCase) { quorum(c); c.ev.Notes = []Note{{Approver: "alice", PayloadHash: "h"}} }, OutcomeDuplicate, "", "1 of 2: alice"},
		{"second of two", Approve, func(c *tapCase) { quorum(c); c.ev.Notes = []Note{{Approver: "bob", PayloadHash: "h"}} }, OutcomeGranted, approvallog.EventGranted, "Granted"},
		{"other bytes were approved", Approve, func(c *tapCase) { quorum(c); c.ev.Notes = []Note{{Approver: "bob", PayloadHash: "old"}} }, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"who approved may no longer", Approve, func(c *tapCase) { quorum(c); c.ev.Notes = []Note{{Approver: "mallory", PayloadHash: "h"}} }, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"who approved had another account", Approve, func(c *tapCase) {
			quorum(c)
			c.ev.Notes = []Note{{Approver: "bob", PayloadHash: "h", Channel: ChannelTelegram, SenderID: bob.TelegramID + 1}}
		}, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"approves again from the new account", Approve, func(c *tapCase) {
			quorum(c)
			c.ev.Notes = []Note{{Approver: "alice", PayloadHash: "h", Channel: ChannelTelegram, SenderID: alice.TelegramID + 1}}
		}, OutcomeNoted, EventApprovalNoted, "1 of 2: alice"},
		{"two accounts of one approver are one", Approve, func(c *tapCase) {
			c.rules.rule.Quorum = 3
			c.ev.Notes = []Note{
				{Approver: "bob", PayloadHash: "h", Channel: ChannelTelegram, SenderID: bob.TelegramID},
				{Approver: "bob", PayloadHash: "h", Channel: ChannelTerminal, SenderID: 1000},
			}
		}, OutcomeNoted, EventApprovalNoted, "2 of 3: bob, alice"},
		{"one reject rejects", Reject, func(c *tapCase) { quorum(c); c.ev.Notes = []Note{{Approver: "bob", PayloadHash: "h"}} }, OutcomeRejected, approvallog.EventRejected, "Rejected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tc := goodTap(c.verdict)
			if c.spoil != nil {
				c.spoil(&tc)
			}
			r := tc.judge()
			if r.Outcome != c.want {
				t.Fatalf("outcome %s, want %s", r.Outcome, c.want)
			}
			got := ""
			if r.Record != nil {
				got = r.Record.Event
			}
			if r.Note != nil {
				got += r.Note.Event
			}
			if got != c.records {
				t.Errorf("records %q, want %q", got, c.records)
			}
			if !strings.Contains(r.Text, c.says) || (r.Text == "") != (c.says == "" && c.want == OutcomeBack) {
				t.Errorf("says %q, want something with %q", r.Text, c.says)
			}
			if units(r.Text) > maxAnswer {
				t.Errorf("the answer has %d units", units(r.Text))
			}
			if decides := c.want == OutcomeGranted || c.want == OutcomeRejected || c.want == OutcomeNoted; decides && r.Outcome.refused() {
				t.Error("a decision counts as refused")
			}
		})
	}
}

func TestRejectWithReason(t *testing.T) {
	c := goodTap(Reject)
	c.tap.Data = Button{Verdict: Reject, Reason: reasonTag("wrong environment"), Nonce: testNonce(7)}.Data()
	r := c.judge()
	if r.Outcome != OutcomeRejected || r.Record.Payload.(decisionPayload).Note != "wrong environment" {
		t.Errorf("outcome %s, record %+v", r.Outcome, r.Record)
	}
	c.rules.rule.RejectReasons = []string{"not now"}
	if r := c.judge(); r.Outcome != OutcomeUnknownReason || r.Record != nil {
		t.Errorf("a reason that is configured no longer: %s, record %v", r.Outcome, r.Record)
	}
}

// TestDecisionRecord pins what stands in the log: the format other verifiers and auditors read.
func TestDecisionRecord(t *testing.T) {
	c := goodTap(Approve)
	c.rules.rule.Quorum = 2
	c.ev.Notes = []Note{{Approver: "bob", At: noon.Add(-time.Minute), PayloadHash: "h", Channel: ChannelTerminal, SenderID: 1000}}
	r := c.judge()
	got, err := json.Marshal(r.Record.Payload)
	if err != nil {
		t.Fatal(err)
	}
	sum := testNonce(7).Sum()
	want := `{"class":"deploy.x","payload_hash":"h","sender":{"channel":"telegram","id":111},"approvald":{"delivery":"d1","nonce_sha256":"` + sum +
		`","chat_id":-5,"message_id":40,"epoch":9,"config_sha256":"cc","approvals":[` +
		`{"by":"human:bob","at":"2026-05-01T11:59:00.000Z","sender":{"channel":"terminal","id":1000}},` +
		`{"by":"human:alice","at":"2026-05-01T12:00:00.000Z","sender":{"channel":"telegram","id":111},"delivery":"d1","nonce_sha256":"` + sum + `"}]}}`
	if string(got) != want {
		t.Errorf("payload\n%s\nwant\n%s", got, want)
	}
	d := r.Record
	if d.Actor != "human:alice" || d.Task != "t" || d.ActionKey != "k" || d.Channel != "telegram" {
		t.Errorf("record %+v", d)
	}
}

func TestButtonData(t *testing.T) {
	for _, b := range []Button{
		{Verdict: Approve, Nonce: testNonce(1)}, {Verdict: Reject, Nonce: testNonce(2)}, {Verdict: Because}, {Verdict: Back},
		{Verdict: Reject, Reason: reasonTag("wrong environment"), Nonce: testNonce(255)},
	} {
		data := b.Data()
		if len(data) < 1 || len(data) > 64 {
			t.Errorf("%q has %d bytes", data, len(data))
		}
		if got, ok := ParseButton(data); !ok || got != b {
			t.Errorf("%q reads back as %+v, %v", data, got, ok)
		}
	}
}

func FuzzParseButton(f *testing.F) {
	f.Add(Button{Verdict: Approve}.Data())
	f.Add(Button{Verdict: Reject, Reason: reasonTag("x"), Nonce: testNonce(3)}.Data())
	f.Add("1a:AAAAAAAAAAAAAAAAAAAAAB")
	f.Fuzz(func(t *testing.T, data string) {
		if b, ok := ParseButton(data); ok && b.Data() != data {
			t.Fatalf("%q was taken for %q", data, b.Data())
		}
	})
}
