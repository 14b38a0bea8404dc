package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

// noPace lets everything go at once.
type noPace struct{}

func (noPace) Wait(ctx context.Context, _ int64, _ transport.Kind) error { return ctx.Err() }
func (noPace) Limited(int64, time.Duration)                              {}

// BenchmarkTapDuringFlood is the time from a tap on a phone until its decision is on disk, while another process files
// requests as fast as the disk takes them and cards wait for Telegram's pace. Server, poll, files and fsyncs are real.
// The aim is a p99 below 50 ms.
func BenchmarkTapDuringFlood(b *testing.B) {
	h := newHouse(b)
	agent := h.open(nil)
	b.Cleanup(agent.close)
	for i := range b.N {
		h.ask(agent, fmt.Sprintf("tapped-%d", i), "one", text("x"))
	}
	h.pacer = noPace{}
	d := h.start()
	var cards []telegramtest.Message
	h.waitFor("the cards to tap", func(s telegramtest.State) bool {
		cards = s.Messages(testChat)
		return len(cards) == b.N
	})
	d.stop()

	h.pacer = nil
	recorded := make(chan time.Time, b.N)
	h.handled = func(u transport.Update) {
		if u.Tap != nil {
			recorded <- time.Now()
		}
	}
	h.start()
	ctx, stop := context.WithCancel(b.Context())
	var filing sync.WaitGroup
	filed := 0
	flood := h.open(nil)
	b.Cleanup(flood.close)
	filing.Go(func() {
		for ; ctx.Err() == nil; filed++ {
			h.file(flood, fmt.Sprintf("agent:%d", filed%7), fmt.Sprintf("flood-%d", filed), "one", text("x"), false)
		}
	})
	took := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for _, card := range cards {
		tapped := time.Now()
		if a := h.tap(alice, card, "Approve"); a.Text != "Granted." {
			b.Fatalf("told %+v", a)
		}
		took = append(took, (<-recorded).Sub(tapped))
	}
	b.StopTimer()
	stop()
	filing.Wait()
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), "ms-median")
	b.ReportMetric(ms(took[len(took)*99/100]), "ms-p99")
	b.ReportMetric(float64(filed), "filed-meanwhile")
}
