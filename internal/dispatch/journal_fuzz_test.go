package dispatch

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// FuzzJournal folds records of the delivery journal with any payloads: what cannot be read is an error, nothing crashes, and a
// delivery that is known stays known.
func FuzzJournal(f *testing.F) {
	events := []string{
		EventEpochOpened, EventEpochClosed, EventDeliveryIntended, EventDeliverySent, EventDeliveryFailed, EventDeliveryUnknown, EventDeliverySettled,
		EventApprovalNoted, EventTapRefused, approvallog.EventArchiveSealed, "something.else",
	}
	f.Add(uint8(2), []byte(`{"delivery":"d","kind":"card","cycle":1,"epoch":1,"nonce_sha256":"ab","chat_id":1}`))
	f.Add(uint8(3), []byte(`{"delivery":"known","chat_id":1,"message_id":9}`))
	f.Add(uint8(4), []byte(`{"delivery":"known","class":"x","reason":"r","migrate_to":-100,"chat_id":1,"retry_at":"2026-08-04T09:14:02Z"}`))
	f.Add(uint8(0), []byte(`{"epoch":9007199254740993,"mode":"poll"}`))
	f.Add(uint8(7), []byte(`{"cycle":1,"approver":"human:alice","sender_id":111}`))
	f.Add(uint8(2), []byte(`{"delivery":"known","nonce_sha256":"cd"}`))
	f.Add(uint8(6), []byte(`{"delivery":"known","state":"granted","how":"gone"}`))
	f.Add(uint8(2), []byte(`null`))
	f.Add(uint8(0), []byte(`{"epoch":"1"}`))
	f.Fuzz(func(t *testing.T, which uint8, payload []byte) {
		if !json.Valid(payload) {
			return
		}
		d := NewDeliveries()
		at := time.Date(2026, 8, 4, 9, 14, 2, 0, time.UTC)
		known := `{"delivery":"known","kind":"card","cycle":1,"epoch":1,"nonce_sha256":"aa","chat_id":1}`
		if err := d.Apply(approvallog.Record{Seq: 1, TS: at, Event: EventDeliveryIntended, ActionKey: "k", Payload: json.RawMessage(known)}); err != nil {
			t.Fatal(err)
		}
		for seq := int64(2); seq < 4; seq++ {
			if d.Apply(approvallog.Record{Seq: seq, TS: at, Event: events[int(which)%len(events)], ActionKey: "k", Payload: payload}) != nil {
				return
			}
		}
		if p, ok := d.ByNonce("aa"); !ok || p.ID != "known" || p.Cycle.Key != "k" {
			t.Errorf("%s %s: the delivery is lost: %+v", events[int(which)%len(events)], payload, p)
		}
	})
}
