package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/run"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStageOrdersAndCanBeGivenUp(t *testing.T) {
	s := newStages()
	if got := s.current(); got != "lease" {
		t.Errorf("a start waits for %q first", got)
	}
	s.lease.reach()
	s.lease.reach()
	if got := s.current(); got != "log verified" || !s.lease.reached() {
		t.Errorf("after the lease the start waits for %q", got)
	}
	if err := s.lease.wait(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	err := s.epoch.wait(ctx)
	if !errors.Is(err, errInterrupted) || !strings.Contains(err.Error(), `"epoch"`) {
		t.Errorf("a wait that was given up says %v", err)
	}
	for _, stage := range s.list() {
		stage.reach()
	}
	if got := s.current(); got != "" {
		t.Errorf("after the whole start it waits for %q", got)
	}
}

func TestCleanupsRunLastInFirstOutWhateverFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		steps := make(chan string, 8)
		var c cleanups
		release := make(chan struct{})
		c.push("lease", func(context.Context) error { steps <- "lease"; return nil })
		c.push("socket", func(context.Context) error { steps <- "socket"; panic("nil map") })
		c.push("webhook", func(context.Context) error { steps <- "webhook"; <-release; return nil })
		c.push("log", func(ctx context.Context) error { steps <- "log"; <-ctx.Done(); return errors.New("busy") })

		began := time.Now()
		err := c.run(zap.New(core), time.Second)
		if took := time.Since(began); took != 2*time.Second+graceAfterCancel {
			t.Errorf("two hanging steps took %v", took)
		}
		for _, want := range []string{"log", "webhook", "socket", "lease"} {
			if got := <-steps; got != want {
				t.Errorf("the step %q ran in the place of %q", got, want)
			}
		}
		for _, want := range []string{"clean up log: busy", "clean up webhook: did not return within 1s", "clean up socket: socket: panic: nil map"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the joined error lacks %q: %v", want, err)
			}
		}
		var failed []string
		for _, entry := range logs.FilterMessage("a step of the stop failed").All() {
			failed = append(failed, entry.ContextMap()["step"].(string))
		}
		if want := []string{"log", "webhook", "socket"}; !slices.Equal(failed, want) {
			t.Errorf("logged as failed: %v, want %v", failed, want)
		}
		if err := c.run(zap.New(core), time.Second); err != nil || len(steps) != 0 {
			t.Errorf("a second run did something: %v", err)
		}
		close(release)
	})
}

func TestActors(t *testing.T) {
	failure := errors.New("disk gone")
	for _, c := range []struct {
		name    string
		execute func(context.Context) error
		want    string
	}{
		{"ends with an error", func(context.Context) error { return failure }, "disk gone"},
		{"ends without one", func(context.Context) error { return nil }, "poller ended by itself"},
		{"panics", func(context.Context) error { panic("out of luck") }, "poller: panic: out of luck"},
		{"takes a cancel of its own for the end", func(context.Context) error { return context.Canceled }, "context canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var g run.Group
			other := false
			actor(&g, zap.NewNop(), "other", time.Second, func(ctx context.Context) error {
				<-ctx.Done()
				other = true
				return context.Cause(ctx)
			})
			actor(&g, zap.NewNop(), "poller", time.Second, c.execute)
			err := g.Run()
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if !other {
				t.Error("the other part was not stopped")
			}
		})
	}
}

func TestAnActorThatDoesNotObeyIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		var g run.Group
		release := make(chan struct{})
		stopped := errors.New("asked to stop")
		g.Add(func() error { return stopped }, func(error) {})
		actor(&g, zap.New(core), "hanging", 3*time.Second, func(context.Context) error { <-release; return nil })
		began := time.Now()
		if err := g.Run(); !errors.Is(err, stopped) {
			t.Errorf("the group ended with %v", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("a hanging part held the stop for %v", took)
		}
		if got := logs.FilterField(zap.String("part", "hanging")).Len(); got != 1 {
			t.Errorf("%d lines name the part that was left behind", got)
		}
		close(release)
	})
}
