package dispatch

import (
	"slices"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
)

// journalOf folds records made of these drafts.
func journalOf(t *testing.T, drafts ...approvallog.Draft) *Deliveries {
	t.Helper()
	d := NewDeliveries()
	for i, draft := range drafts {
		rec := approvallog.Record{Seq: int64(i + 1), TS: noon, Event: draft.Event, Actor: draft.Actor, ActionKey: draft.ActionKey, Payload: mustJSON(t, draft.Payload)}
		if err := d.Apply(rec); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

var (
	intendedK = journalDraft(EventDeliveryIntended, "k", intendedPayload{Delivery: "d", Kind: KindCard, Cycle: 3, NonceSHA256: "n", PayloadHash: "h", ChatID: 7})
	sentK     = journalDraft(EventDeliverySent, "k", sentPayload{Delivery: "d", ChatID: 7, MessageID: 40})
	failedK   = journalDraft(EventDeliveryFailed, "k", failedPayload{Delivery: "d", Reason: "blocked"})
	unknownK  = journalDraft(EventDeliveryUnknown, "k", unknownPayload{Delivery: "d", Reason: "timeout"})
	settledK  = journalDraft(EventDeliverySettled, "k", settledPayload{Delivery: "d", State: approvallog.StateGranted, How: HowEdited})
)

// TestDeliveriesOnlyGrow: no later record takes back what an earlier one has established.
func TestDeliveriesOnlyGrow(t *testing.T) {
	for _, c := range []struct {
		name    string
		drafts  []approvallog.Draft
		phase   Phase
		message int64
		settled approvallog.State
	}{
		{"intended", []approvallog.Draft{intendedK}, PhaseIntended, 0, ""},
		{"sent", []approvallog.Draft{intendedK, sentK}, PhaseSent, 40, ""},
		{"unknown", []approvallog.Draft{intendedK, unknownK}, PhaseUnknown, 0, ""},
		{"failed", []approvallog.Draft{intendedK, failedK}, PhaseFailed, 0, ""},
		{"unknown, then found by a tap", []approvallog.Draft{intendedK, unknownK, sentK}, PhaseSent, 40, ""},
		{"sent stays sent", []approvallog.Draft{intendedK, sentK, unknownK, failedK}, PhaseSent, 40, ""},
		{"the first id stays", []approvallog.Draft{intendedK, sentK, journalDraft(EventDeliverySent, "k", sentPayload{Delivery: "d", ChatID: 8, MessageID: 41})}, PhaseSent, 40, ""},
		{"intended again", []approvallog.Draft{intendedK, sentK, settledK, intendedK}, PhaseSent, 40, approvallog.StateGranted},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := journalOf(t, c.drafts...)
			got, ok := d.ByNonce("n")
			if !ok || got.Phase != c.phase || got.MessageID != c.message || got.Settled != c.settled || got.ChatID != 7 {
				t.Errorf("delivery %+v, %v", got, ok)
			}
			if n := len(slices.Collect(d.Of(CycleID{"k", 3}))); n != 1 {
				t.Errorf("%d deliveries", n)
			}
			if copied, ok := d.clone().ByNonce("n"); !ok || copied != got {
				t.Errorf("the clone has %+v", copied)
			}
		})
	}
}

func TestNoncesAreNotTakenOver(t *testing.T) {
	d := journalOf(t, intendedK, journalDraft(EventDeliveryIntended, "other", intendedPayload{Delivery: "e", Kind: KindCard, Cycle: 9, NonceSHA256: "n", ChatID: 7}))
	if got, _ := d.ByNonce("n"); got.Cycle.Key != "k" {
		t.Errorf("the nonce went to %+v", got)
	}
}

func TestNotesCountEachApproverOnce(t *testing.T) {
	note := func(who string, cycle int64) approvallog.Draft {
		return journalDraft(EventApprovalNoted, "k", notedPayload{Cycle: cycle, Approver: who, PayloadHash: "h"})
	}
	d := journalOf(t, note("alice", 3), note("alice", 3), note("bob", 3), note("alice", 8))
	if got := approversOf(d.Notes(CycleID{"k", 3})); !slices.Equal(got, []string{"alice", "bob"}) {
		t.Errorf("noted %v", got)
	}
	if got := approversOf(d.Notes(CycleID{"k", 8})); !slices.Equal(got, []string{"alice"}) {
		t.Errorf("noted in the next asking %v", got)
	}
}

// TestNotesKeepEachAccount: who approves again from another account is noted again; which of the two counts is judged later.
func TestNotesKeepEachAccount(t *testing.T) {
	note := func(sender int64) approvallog.Draft {
		return journalDraft(EventApprovalNoted, "k", notedPayload{Cycle: 3, Approver: "alice", PayloadHash: "h", Channel: ChannelTelegram, SenderID: sender})
	}
	d := journalOf(t, note(111), note(911), note(911))
	notes := d.Notes(CycleID{"k", 3})
	if len(notes) != 2 || notes[0].SenderID != 111 || notes[1].SenderID != 911 {
		t.Errorf("noted %+v", notes)
	}
}

func TestEpochs(t *testing.T) {
	open := func(n int64, url string) approvallog.Draft {
		return journalDraft(EventEpochOpened, "", epochPayload{Epoch: n, EpochInfo: EpochInfo{WebhookURL: url}})
	}
	closed := func(n int64) approvallog.Draft { return journalDraft(EventEpochClosed, "", epochPayload{Epoch: n}) }
	d := journalOf(t, open(1, "a"), closed(1), open(2, "b"), open(1, "c"), closed(1))
	info, done := d.LastEpoch()
	if d.Epoch() != 2 || info.WebhookURL != "b" || done {
		t.Errorf("epoch %d %+v, closed %v", d.Epoch(), info, done)
	}
	noted := func(n int64, url string) approvallog.Draft {
		return journalDraft(EventWebhookNoted, "", epochPayload{Epoch: n, EpochInfo: EpochInfo{WebhookURL: url}})
	}
	for want, d := range map[string]*Deliveries{
		"d": journalOf(t, open(1, "a"), noted(1, "d")),
		"":  journalOf(t, open(1, "a"), noted(1, "d"), noted(1, "")),
		"b": journalOf(t, open(1, "a"), open(2, "b"), noted(1, "d")), // of a daemon that had lost its lease
	} {
		if info, _ := d.LastEpoch(); info.WebhookURL != want {
			t.Errorf("the webhook is %q, want %q", info.WebhookURL, want)
		}
	}
}

func TestDamagedJournalIsToldAndForeignEventsPass(t *testing.T) {
	d := NewDeliveries()
	if err := d.Apply(approvallog.Record{Seq: 1, Event: EventDeliverySent, Payload: []byte(`{"delivery":5}`)}); err == nil {
		t.Error("a record that cannot be read was passed over")
	}
	if err := d.Apply(approvallog.Record{Seq: 2, Event: "archive.sealed", Payload: []byte(`{}`)}); err != nil {
		t.Error(err)
	}
}
