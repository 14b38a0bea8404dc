package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// gateStatus is what status --json says, as far as the tests need it.
type gateStatus struct {
	Transport struct {
		LastSuccess *time.Time `json:"last_success"`
	} `json:"transport"`
	Pending     int `json:"pending"`
	Unsettled   int `json:"unsettled"`
	Undelivered []struct {
		Key       string    `json:"key"`
		Reason    string    `json:"reason"`
		Since     time.Time `json:"since"`
		Waiting   bool      `json:"waiting"`
		MaybeSeen bool      `json:"maybe_seen"`
	} `json:"undelivered"`
	Total int `json:"undelivered_total"`
}

func (w *world) gateStatus() (st gateStatus) {
	w.t.Helper()
	text := w.run(0, "status", "--json").stdout.String()
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		w.t.Fatalf("%v: %s", err, text)
	}
	return st
}

// TestStatusNamesWhatNobodyHasSeen: before the first daemon, between two, and while a flood waits for its turn, status says which
// requests nobody was shown, since when, and why.
func TestStatusNamesWhatNobodyHasSeen(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, telegramtest.Options{Limits: telegramtest.TelegramLimits()})
	const flood = 12
	asked := time.Now().Add(-time.Second)
	w.rotate(0, "early:", 2)
	st := w.gateStatus()
	if st.Total != 2 || len(st.Undelivered) != 2 || st.Undelivered[0].Key != "early:0" || st.Undelivered[0].Reason != "no daemon runs" ||
		st.Undelivered[0].Since.Before(asked) || st.Transport.LastSuccess != nil {
		t.Errorf("before the first daemon: %+v", st)
	}

	daemon := w.up()
	w.until("both to be shown", func() bool { return w.gateStatus().Total == 0 })
	// The first of the flood is on its way for as long as the others take to be filed, however slow the machine is.
	w.telegram.Fault(telegramtest.Fault{Method: "sendMessage", Count: telegramtest.Always, Do: telegramtest.Hang()})
	for i := range flood {
		w.run(0, "request", fmt.Sprint("flood:", i), "--class", "deploy.production", "--summary", "s", "--irreversible")
	}
	w.until("some to wait for their turn", func() bool {
		st := w.gateStatus()
		return st.Total > 0 && len(st.Undelivered) == st.Total && st.Undelivered[st.Total-1].Waiting && strings.Contains(st.Undelivered[st.Total-1].Reason, "its turn has not come")
	})
	if text := w.run(0, "status").stdout.String(); !strings.Contains(text, "nobody has seen it yet: its turn has not come") {
		t.Errorf("status: %s", text)
	}
	daemon.signal(syscall.SIGTERM)
	daemon.code()

	// The chat refuses one, and what the journal knows of that is told without a daemon too.
	before := w.gateStatus()
	if before.Total == 0 || before.Total > flood || before.Transport.LastSuccess == nil || !strings.HasPrefix(before.Undelivered[before.Total-1].Reason, "no daemon runs") {
		t.Errorf("between two daemons: %+v", before)
	}
	shown := map[string]bool{}
	for _, m := range w.telegram.Messages(alice) {
		for i := range flood {
			if key := fmt.Sprint("flood:", i); strings.Contains(m.Body(), key+" ") {
				shown[key] = true
			}
		}
	}
	for _, u := range before.Undelivered {
		if shown[u.Key] && !u.MaybeSeen {
			t.Errorf("%s is on the phone, and status says that nobody has seen it: %+v", u.Key, u)
		}
	}
}
