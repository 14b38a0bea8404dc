package dispatch

import (
	"errors"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/transport"
)

// TestFenceTellsWhatWasLost: a guard's refusal is one kind of error, and the lease's own is still to be found in it.
func TestFenceTellsWhatWasLost(t *testing.T) {
	h := newHouse(t)
	f := h.open(nil)
	t.Cleanup(f.close)
	lost := errors.New("the lease is lost")
	err := NewFence(func() error { return lost }, WrapLog(f.journal), f.deliveries).Guard()
	if !errors.Is(err, approvallog.ErrFenced) || !errors.Is(err, lost) {
		t.Errorf("Guard: %v", err)
	}
}

// TestAnEpochThatIsOverSendsNothing: the lease was found free and taken again, but another daemon had it in between.
func TestAnEpochThatIsOverSendsNothing(t *testing.T) {
	h := newHouse(t)
	f := h.open(nil)
	t.Cleanup(f.close)
	log, journal := WrapLog(f.log), WrapLog(f.journal)
	mine, err := OpenEpoch(t.Context(), log, journal, f.deliveries, EpochInfo{})
	if err != nil {
		t.Fatal(err)
	}
	loop := New(Options{
		Log: log, Journal: journal, Requests: f.requests, Deliveries: f.deliveries, Payloads: h, Pacer: transport.NewPacer(),
		Rules: h.rules, Chat: h.chat, Epoch: mine, Check: func() error { return nil },
	})
	if err := loop.entitled(); err != nil {
		t.Fatal(err)
	}
	other := h.open(nil)
	t.Cleanup(other.close)
	if _, err := OpenEpoch(t.Context(), WrapLog(other.log), WrapLog(other.journal), other.deliveries, EpochInfo{}); err != nil {
		t.Fatal(err)
	}
	if err := loop.entitled(); !errors.Is(err, approvallog.ErrFenced) {
		t.Errorf("before a send: %v", err)
	}
}
