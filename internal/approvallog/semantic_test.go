package approvallog

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What the examination says counts for nothing is exactly what the fold passes over.
func TestSemanticAgreesWithTheFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fold := &entry{}
		asked := false
		var found []Finding
		s := newSemantic(func(f Finding) { found = append(found, f) })
		for seq := int64(1); seq <= int64(rapid.IntRange(1, 12).Draw(t, "records")); seq++ {
			r := aRecord(t, seq)
			before := fmt.Sprintf("%+v", fold.shown())
			cycle := fmt.Sprintf("%+v", fold.cycle)
			switch {
			case r.Event == EventRequested:
				asked = true
				fold.open(&r, membersOf(r.Payload))
			case asked:
				fold.apply(&r, membersOf(r.Payload))
			}
			s.record(r, seq, 0)
			counted := fmt.Sprintf("%+v", fold.shown()) != before || fmt.Sprintf("%+v", fold.cycle) != cycle
			said := slices.ContainsFunc(found, func(f Finding) bool { return f.Seq == seq })
			rejectedByNobody := counted && r.Event == EventRejected && !humanActor(r.Actor)
			if said == counted && !rejectedByNobody || rejectedByNobody && !said {
				t.Fatalf("record %d, %s by %s with %s: counted by the fold %v, findings %v", seq, r.Event, r.Actor, r.Payload, counted, found)
			}
		}
	})
}

// aRecord is a record about one key, at one of few times, with one of few payloads.
func aRecord(t *rapid.T, seq int64) Record {
	r := Record{
		Seq: seq, TS: testClock.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "minute")) * time.Minute), ActionKey: "k",
		Event: rapid.SampledFrom([]string{
			EventRequested, EventGranted, EventRejected, EventExpired, EventWithdrawn, EventRevoked, EventExecutionStarted, EventExecutionCompleted, EventExecutionFailed,
		}).Draw(t, "event"),
		Actor: rapid.SampledFrom([]string{"human:h", "agent:a"}).Draw(t, "actor"),
	}
	deadline := testClock.Add(2 * time.Minute).Format(time.RFC3339)
	payloads := []string{"", `{"payload_hash":"aa"}`, `{"payload_hash":"bb"}`, `{"payload_hash":7}`}
	if r.Event == EventRequested {
		payloads = []string{
			"", `{"payload_hash":"aa"}`, fmt.Sprintf(`{"payload_hash":"aa","wait_until":%q}`, deadline),
			fmt.Sprintf(`{"approvald":{"expires_at":%q},"payload_hash":"bb"}`, deadline),
		}
	}
	r.Payload = []byte(rapid.SampledFrom(payloads).Draw(t, "payload"))
	return r
}
