package transport

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// take makes n calls one after the other and returns when each was let go.
func take(t *testing.T, p *Pacer, n int, chat int64, kind Kind) []time.Duration {
	t.Helper()
	start := time.Now()
	var out []time.Duration
	for range n {
		if err := p.Wait(t.Context(), chat, kind); err != nil {
			t.Fatal(err)
		}
		out = append(out, time.Since(start).Round(10*time.Millisecond))
	}
	return out
}

func TestPacerChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		got := take(t, p, 23, 111, KindCard)
		if got[19] != 0 || got[20] != time.Second || got[22] != 3*time.Second {
			t.Errorf("let go at %v", got)
		}
		if other := take(t, p, 1, 222, KindCard); other[0] != 0 {
			t.Errorf("another chat waited %v", other)
		}
	})
}

func TestPacerGroupHasTwentyInAnyMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := take(t, NewPacer(), 70, -1001, KindCard)
		if got[19] != 0 || got[20] < time.Minute || got[69] > 4*time.Minute {
			t.Errorf("let go at %v", got)
		}
		for i := groupCalls; i < len(got); i++ {
			if got[i]-got[i-groupCalls] < groupWindow {
				t.Fatalf("21 calls within %s", got[i]-got[i-groupCalls])
			}
		}
	})
}

func TestPacerBot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		start := time.Now()
		for chat := range int64(90) {
			if err := p.Wait(t.Context(), chat+1, KindCard); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < 1900*time.Millisecond || took > 2200*time.Millisecond {
			t.Errorf("90 chats took %s, want 2 s after a burst of 30", took)
		}
	})
}

func TestPacerCardsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		// Settling leaves some of the burst to cards.
		settled := take(t, p, 16, 111, KindSettle)
		if settled[14] != 0 || settled[15] != time.Second {
			t.Errorf("settled at %v", settled)
		}
		if cards := take(t, p, 5, 111, KindCard); cards[4] != 0 {
			t.Errorf("cards after many decisions went at %v", cards)
		}
		// With everything used up, cards that come later overtake edits.
		var order []string
		done := make(chan string)
		wait := func(name string, kind Kind) {
			go func() {
				if err := p.Wait(t.Context(), 111, kind); err != nil {
					t.Error(err)
				}
				done <- name
			}()
			synctest.Wait()
		}
		wait("edit 1", KindSettle)
		wait("edit 2", KindSettle)
		wait("card 1", KindCard)
		wait("card 2", KindCard)
		for range 4 {
			order = append(order, <-done)
		}
		if want := []string{"card 1", "card 2", "edit 1", "edit 2"}; !slices.Equal(order, want) {
			t.Errorf("order %v", order)
		}
	})
}

func TestPacerAnswersNeverWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		take(t, p, 20, 111, KindCard)
		p.Limited(111, time.Hour)
		p.Limited(222, time.Hour)
		if got := take(t, p, 100, 111, KindAnswer); got[99] != 0 {
			t.Errorf("answers went at %v", got)
		}
	})
}

func TestPacerRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		p.Limited(111, 7*time.Second)
		if got := take(t, p, 1, 222, KindCard); got[0] != 0 {
			t.Errorf("a limit of one chat held up another: %v", got)
		}
		p.Limited(111, time.Second) // does not shorten the pause
		if got := take(t, p, 2, 111, KindCard); got[0] != 7*time.Second {
			t.Errorf("let go at %v, want 7 s", got)
		}
		// Two chats within a minute: it is the bot that is limited.
		p.Limited(111, 5*time.Second)
		p.Limited(222, 9*time.Second)
		if got := take(t, p, 1, 333, KindCard); got[0] != 9*time.Second {
			t.Errorf("a third chat went at %v, want 9 s", got)
		}
		time.Sleep(2 * time.Minute)
		p.Limited(111, 5*time.Second)
		if got := take(t, p, 1, 333, KindCard); got[0] != 0 {
			t.Errorf("a limit of long ago still counts: %v", got)
		}
	})
}

func TestPacerCountsOnlyWhatIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		take(t, p, 20, 111, KindCard)
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if err := p.Wait(ctx, 111, KindCard); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			cancel()
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Wait(ended, 222, KindCard); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if got := take(t, p, 1, 111, KindCard); got[0] != 500*time.Millisecond {
			t.Errorf("let go at %v: calls that were given up are counted", got)
		}
	})
}

// TestPacerTaps: an edit that a tap asks for goes ahead of what waits, is counted with it, and obeys a retry_after to the second.
func TestPacerTaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, chat := range []int64{111, -1001} {
			p := NewPacer()
			take(t, p, 20, chat, KindCard)
			if got := take(t, p, 3, chat, KindTap); got[2] != 0 {
				t.Errorf("chat %d: edits for taps went at %v", chat, got)
			}
			want := 4 * time.Second // one card, and three edits before it
			if chat < 0 {
				want = time.Minute // 23 in one minute, of which the first 20 have left it together
			}
			if got := take(t, p, 1, chat, KindCard); got[0] < want || got[0] > want+10*time.Millisecond {
				t.Errorf("chat %d: the next card went at %v, want %v", chat, got, want)
			}
			p.Limited(chat, 7*time.Second)
			if got := take(t, p, 1, chat, KindTap); got[0] != 7*time.Second {
				t.Errorf("chat %d: an edit for a tap went at %v, want 7 s", chat, got)
			}
		}
	})
}
