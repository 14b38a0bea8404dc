package gate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
)

func BenchmarkBindPayload(b *testing.B) {
	text := bytes.Repeat([]byte("restart the api, then look at the log\n"), MaxPayload/2/38)
	list := make([]map[string]any, 20_000)
	for i := range list {
		list[i] = map[string]any{"name": fmt.Sprint("host", i), "weight": float64(i) / 3, "tags": []string{"a", "b"}, "active": i%2 == 0}
	}
	object, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		b.Fatal(err)
	}
	for name, data := range map[string][]byte{"text": text, "json": object, "file": bytes.Repeat([]byte{0xff}, MaxPayload)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, _, err := BindPayload(name, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCreate files requests into gates whose histories differ in length: one look-up tells
// whether a key is known, so that the time must not follow the history.
func BenchmarkCreate(b *testing.B) {
	for _, history := range []int{0, 10_000} {
		b.Run(fmt.Sprint("after ", history), func(b *testing.B) {
			cfg := testConfig(filepath.Join(b.TempDir(), ".approval"))
			cfg.Requests.MaxPending, cfg.Requests.PerRequesterPerHour = 1e9, 1e9
			g, err := Open(cfg, OpenOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer g.Close()
			_, err = g.Log().Update(b.Context(), func(tx *approvallog.Tx) error {
				for i := range history {
					for _, event := range []string{approvallog.EventRequested, approvallog.EventWithdrawn} {
						key := fmt.Sprint("old-", i)
						if err := appendOne(tx, approvallog.Draft{Event: event, Actor: "agent:old", Task: key, ActionKey: key}); err != nil {
							return err
						}
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			for n := 0; b.Loop(); n++ {
				key := fmt.Sprint(n)
				if _, _, err := g.Create(b.Context(), newRequest(key)); err != nil {
					b.Fatal(err)
				}
				if _, err := g.Withdraw(b.Context(), key, "agent:ci", nil, "cancelled"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
