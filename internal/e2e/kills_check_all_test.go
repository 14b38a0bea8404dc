//go:build all

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/approvald/approvald/internal/telegramtest"
)

// exitByEnd is what a waiting program ends with, by the record that ended its request.
var exitByEnd = map[string]int{"approval.granted": 0, "approval.rejected": 3, "approval.expired": 4, "approval.withdrawn": 5}

// endByAnswer is what must be in the log before a person is told this.
var endByAnswer = map[string]string{"Granted.": "approval.granted", "Rejected.": "approval.rejected"}

// check holds the log against everything that was told so far.
func (s *storm) check() {
	t := s.w.t
	t.Helper()
	// What was told is looked at before the log, which must know it by then.
	codes := map[string]int{}
	for _, a := range s.all {
		select {
		case <-a.waiter.done:
			codes[a.key] = a.waiter.code()
		default:
		}
	}
	answers := s.answers()
	ends, ok := s.ends()
	if !ok {
		return
	}
	for key, code := range codes {
		if want, ended := exitByEnd[ends[key].Event]; !ended || code != want {
			t.Errorf("%s (%s): exit code %d, but the log says %q\n%s", key, s.byKey[key].plan, code, ends[key].Event, s.byKey[key].waiter.stderr.String())
		}
	}
	for key, texts := range answers {
		for _, text := range texts {
			if want := endByAnswer[text]; want != "" && ends[key].Event != want {
				t.Errorf("%s: the person was told %q, but the log says %q", key, text, ends[key].Event)
			}
		}
	}
}

// answers are the texts that taps on each request's messages were answered with.
func (s *storm) answers() map[string][]string {
	found := map[string][]string{}
	for _, tap := range s.taps {
		if info := tap.Info(); info.Answer != nil {
			m, _ := s.w.telegram.Message(info.ChatID, info.MessageID)
			key := keyInCard.FindString(m.Body())
			found[key] = append(found[key], info.Answer.Text)
		}
	}
	return found
}

// ends verifies the log, by the product and without it, and returns the record that ended each request. It is false when a kill
// tore the last record in two, which the next append puts aside.
func (s *storm) ends() (map[string]record, bool) {
	t := s.w.t
	t.Helper()
	verify := s.w.start("log", "verify")
	switch code := verify.code(); code {
	case 0:
	case 9:
		s.torn++
		return nil, false
	default:
		t.Fatalf("log verify: exit code %d\n%s%s", code, verify.stdout.String(), verify.stderr.String())
	}
	text := s.text()
	if !bytes.HasPrefix(text, s.log) {
		t.Errorf("records that were in the log are gone or changed")
	}
	s.log = text
	requested, ends := map[string]bool{}, map[string]record{}
	for _, r := range s.w.chain(text) {
		a := s.byKey[r.ActionKey]
		_, ended := ends[r.ActionKey]
		switch {
		case a == nil:
			t.Errorf("record %d (%s) is about %q, which nobody asked for", r.Seq, r.Event, r.ActionKey)
		case r.Event == "approval.requested":
			if requested[a.key] {
				t.Errorf("%s was requested twice", a.key)
			}
			requested[a.key] = true
		case !requested[a.key] || ended:
			t.Errorf("%s: %s (record %d) after %q", a.key, r.Event, r.Seq, ends[a.key].Event)
		default:
			ends[a.key] = r
			if !a.allows(r) {
				t.Errorf("%s (%s): %s by %s, for which nothing was done", a.key, a.plan, r.Event, r.Actor)
			}
		}
	}
	return ends, true
}

// text reads the log while no record of it is half written.
func (s *storm) text() (text []byte) {
	s.w.t.Helper()
	s.w.until("whole records in the log", func() bool {
		var err error
		text, err = os.ReadFile(filepath.Join(s.w.home, "log", "events.jsonl"))
		s.w.must(err)
		return bytes.HasSuffix(text, []byte("\n")) || len(text) == 0
	})
	return text
}

// allows reports whether what was done about a request can have ended it so.
func (a *asking) allows(end record) bool {
	tapped := func(button string) bool {
		return slices.ContainsFunc(a.taps, func(tap *telegramtest.Tap) bool { return tap.Info().Label == button })
	}
	switch end.Event {
	case "approval.granted":
		return end.Actor == "human:alice" && tapped("Approve")
	case "approval.rejected":
		return end.Actor == "human:alice" && tapped("Reject")
	case "approval.withdrawn":
		return end.Actor == "agent:"+a.asker && a.withdrawn > 0
	case "approval.expired":
		return end.Actor == "system:gate" && a.plan == planExpire
	}
	return false
}

// delivered is what the journal says about the messages of one request.
type delivered struct {
	sent    []int64 // ids of messages
	unknown int
}

func (s *storm) journal() map[string]*delivered {
	t := s.w.t
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.w.home, "daemon", "deliveries.jsonl"))
	s.w.must(err)
	keys, found := map[string]string{}, map[string]*delivered{}
	for line := range bytes.Lines(text) {
		var r struct {
			Event   string
			Key     string `json:"action_key"`
			Payload struct {
				Delivery  string
				MessageID int64 `json:"message_id"`
			}
		}
		s.w.must(json.Unmarshal(line, &r))
		if r.Event == "delivery.intended" {
			keys[r.Payload.Delivery] = r.Key
			if found[r.Key] == nil {
				found[r.Key] = &delivered{}
			}
		}
		d := found[keys[r.Payload.Delivery]]
		switch r.Event {
		case "delivery.sent":
			d.sent = append(d.sent, r.Payload.MessageID)
		case "delivery.unknown":
			d.unknown++
		}
	}
	return found
}

// finish holds the whole run against its promises. A daemon is up and has nothing left to do but to settle.
func (s *storm) finish(daemon *process) {
	t := s.w.t
	t.Helper()
	s.w.until("every known message to be settled", func() bool {
		for _, d := range s.journal() {
			for _, id := range d.sent {
				if m, _ := s.w.telegram.Message(alice, id); len(m.Buttons) > 0 {
					return false
				}
			}
		}
		return true
	})
	s.check()
	before := s.log
	ends, _ := s.ends()
	journal, shown := s.journal(), s.shown()
	for _, a := range s.all {
		end, n := ends[a.key].Event, len(shown[a.key])
		switch {
		case end == "":
			t.Errorf("%s (%s) has no end", a.key, a.plan)
		case n == 0 && a.plan != planExpire && a.plan != planWithdraw:
			t.Errorf("%s (%s) was never shown", a.key, a.plan)
		case n > 1 && n > 1+journal[a.key].unknown:
			t.Errorf("%s (%s) was shown %d times, but only %d sends had an unknown outcome", a.key, a.plan, n, journal[a.key].unknown)
		}
		wanted := map[plan]string{planApprove: "approval.granted", planStay: "approval.granted", planReject: "approval.rejected"}[a.plan]
		if wanted != "" && end != wanted {
			t.Errorf("%s (%s): a decision was lost: %s", a.key, a.plan, end)
		}
	}
	for _, m := range s.w.telegram.Messages(alice) {
		if keyInCard.FindString(m.Body()) == "" {
			t.Errorf("a message that no request explains: %s", m.Body())
		}
	}

	// Copies of which nobody learned the id still have buttons. They are known to the gate, change nothing and are settled then.
	// Nor does anything change when Telegram repeats all that it remembers.
	for _, messages := range shown {
		for _, m := range messages {
			if len(m.Buttons) > 0 {
				tap, err := s.phone.TapMessage(m, "Reject")
				s.w.must(err)
				s.taps = append(s.taps, tap)
			}
		}
	}
	s.w.telegram.Redeliver()
	s.w.await(daemon, "every copy to be settled and every update to be taken", func(st telegramtest.State) bool {
		for _, m := range st.Messages(alice) {
			if len(m.Buttons) > 0 {
				return false
			}
		}
		return st.Pending() == 0
	})
	daemon.kill()
	if !bytes.Equal(s.text(), before) {
		t.Error("repeated updates and taps on decided cards changed the log")
	}
	s.w.run(0, "log", "verify", "--semantic")
}
