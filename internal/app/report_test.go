package app

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestVitals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var hanging atomic.Bool
		due := time.Now()
		v := &vitals{vitals: []*vital{
			{name: "lease", limit: 10 * time.Second, probe: func() error { return errors.New("lost") }},
			{name: "log", limit: 10 * time.Second, probe: func() error {
				if hanging.Load() {
					<-hang
				}
				return nil
			}},
			{name: "transport", limit: receiveOverdue, due: func() time.Time { return due }},
		}}
		// round is what happens between two ticks of the watchdog.
		round := func() string {
			stuck := v.stuck()
			v.probe()
			time.Sleep(10 * time.Second)
			return stuck
		}
		for range 5 {
			if stuck := round(); stuck != "" {
				t.Fatalf("%s is called stuck while all is well; an error is an answer", stuck)
			}
		}
		hanging.Store(true)
		round()
		if stuck := round(); stuck != "log" {
			t.Errorf("a log that hangs: stuck is %q", stuck)
		}
		hanging.Store(false)
		close(hang)
		due = time.Now().Add(time.Hour)
		synctest.Wait()
		if stuck := round(); stuck != "" {
			t.Errorf("a log that came back: stuck is %q", stuck)
		}
		due = time.Now().Add(-receiveOverdue - time.Second)
		if stuck := round(); stuck != "transport" {
			t.Errorf("a receive loop that does not come round: stuck is %q", stuck)
		}
	})
}
