package dispatch

import (
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/telegramtest"
)

// troubledPayloads cannot be read.
type troubledPayloads struct{ err error }

func (p troubledPayloads) Payload(string) (canonical, file []byte, err error) { return nil, nil, p.err }

// TestOnlyWhatPassesIsTriedSoon: a machine without a free descriptor is no verdict about the message; bytes that are gone
// are.
func TestOnlyWhatPassesIsTriedSoon(t *testing.T) {
	tooMany := &fs.PathError{Op: "open", Path: "payloads/x.json", Err: syscall.EMFILE}
	for want, err := range map[bool]error{
		true:  &gate.Error{Code: gate.CodeInternal, Message: "read the payload: " + tooMany.Error(), Err: tooMany},
		false: &gate.Error{Code: gate.CodePayloadDamaged, Message: "the file is missing"},
	} {
		l := New(Options{Payloads: troubledPayloads{err}, Rules: testRules{}, Now: func() time.Time { return noon }})
		if ev := l.prepare(approvallog.Request{Key: "k"}).(Prepared); ev.Err == "" || ev.Passing != want {
			t.Errorf("%v: %+v", err, ev)
		}
		kind := ResultRefused
		if want {
			kind = ResultLocal
		}
		for _, what := range []Action{SendCard{}, SendDocument{}, EditProgress{}} {
			if r := resultOf(l.perform(t.Context(), Call{What: what})); r.Kind != kind {
				t.Errorf("%T, %v: %+v", what, err, r)
			}
		}
	}
	// The outcome of what can be read again soon is not shown without its bytes.
	l := New(Options{Payloads: troubledPayloads{&gate.Error{Code: gate.CodeInternal, Err: tooMany}}, Rules: testRules{}})
	if r := resultOf(l.perform(t.Context(), Call{What: EditSettled{}})); r.Kind != ResultLocal {
		t.Errorf("settled: %+v", r)
	}
}

func TestOutcomeIsShownPlainlyWhenTelegramTakesNoMarkup(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k<&\">", "one", text("x"))
	m := h.card("k<&\">", withButtons)
	h.server.Fault(telegramtest.Fault{
		Method: "editMessageText", Do: telegramtest.Fail(400, "Bad Request: can't parse entities: Unexpected end tag at byte offset 3"),
	})
	h.tap(alice, m, "Approve")
	m = h.card("k<&\">", settled)
	if !strings.HasPrefix(m.Text, "✅ granted · alice") || strings.Contains(m.Text, "<code>") || strings.Contains(m.Text, "&amp;") {
		t.Errorf("settled to\n%s", m.Text)
	}
}

// TestLimitIsObeyedByTheNextDaemon: a 429 for an hour, and another daemon takes over.
func TestLimitIsObeyedByTheNextDaemon(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.server.Fault(telegramtest.Fault{Method: "sendMessage", Do: telegramtest.Limited(time.Hour)})
	h.ask(d.files, "k", "one", text("x"))
	h.stats(d, func(s Stats) bool { return !s.MutedUntil.IsZero() })
	d.stop()
	sent := h.sends()
	again := h.start()
	h.stats(again, func(s Stats) bool { return time.Until(s.MutedUntil) > 59*time.Minute })
	if h.sends() != sent {
		t.Errorf("%d messages were sent within the hour", h.sends()-sent)
	}
}

func TestNeedsSaysHowManyOf(t *testing.T) {
	for _, c := range []struct {
		approvers []Approver
		quorum    int
		want      string
	}{
		{[]Approver{alice}, 1, "needs 1: alice"},
		{[]Approver{alice, bob}, 1, "needs 1 of: alice, bob"},
		{[]Approver{alice, bob}, 2, "needs 2: alice, bob"},
	} {
		card := Card{Request: approvallog.Request{Quorum: c.quorum}, Rule: Rule{Quorum: 1, Approvers: c.approvers}}
		if got := card.needs(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
