package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
)

// statusOnly is a daemon of which only the status is asked.
type statusOnly struct {
	gateapi.Ops
	st *gateapi.Status
}

func (s statusOnly) Status(context.Context) (gateapi.Status, error) { return *s.st, nil }

func TestDeliveryTroubleIsToldOnceAndItsEndToo(t *testing.T) {
	dir, err := os.MkdirTemp("", "av-") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "run", "s.sock")
	meant := gate.Identity{Name: "g"}
	l, err := gateapi.Listen(t.Context(), path, meant)
	if err != nil {
		t.Fatal(err)
	}
	st := &gateapi.Status{Gate: "g"}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- gateapi.NewServer(gateapi.ServerOptions{Gate: meant, Ops: statusOnly{st: st}, Logger: zap.NewNop()}).Serve(ctx, l)
	}()
	c := gateapi.NewClient(path, meant)
	u, _, errw := captured()
	w := &deliveryWatch{ui: u, key: "k", clients: []*gateapi.Client{gateapi.NewClient(path+"x", meant), c}}
	deaf := gateapi.Trouble{Code: gateapi.TroubleDeaf, Text: "last heard (1m0s ago)"}
	for _, step := range []struct {
		reason  string
		trouble []gateapi.Trouble
		want    string
	}{
		{"", nil, ""},
		{"chat not found", nil, "k: not delivered yet, nobody has seen it: chat not found"},
		{"chat not found", []gateapi.Trouble{{Code: gateapi.TroubleUndelivered, Text: "that of others"}}, ""},
		{"bot was kicked", nil, "bot was kicked"},
		{"timeout?", nil, "k: delivery not confirmed, it may be on the phone already: timeout?"},
		{"", nil, "k: delivered now"},
		{"", nil, ""},
		{"", []gateapi.Trouble{deaf}, "k: nobody may be able to answer (deaf): last heard (1m0s ago)"},
		{"", []gateapi.Trouble{{Code: gateapi.TroubleDeaf, Text: "last heard (1m5s ago)"}}, ""},
		{"", nil, "k: over: deaf"},
	} {
		st.Undelivered = []gateapi.Undelivered{{Key: "other", Reason: "not ours"}}
		if step.reason != "" {
			st.Undelivered = append(st.Undelivered, gateapi.Undelivered{Key: "k", Reason: step.reason, MaybeSeen: strings.HasSuffix(step.reason, "?")})
		}
		st.Troubles = step.trouble
		errw.Reset()
		w.look(t.Context(), oneLook)
		if got := errw.String(); !strings.Contains(got, step.want) || (step.want == "") != (got == "") {
			t.Errorf("with reason %q and %v: said %q, want %q", step.reason, step.trouble, got, step.want)
		}
	}
	c.Close()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	for i, want := range []string{"k: no daemon serves the gate, noticed at ", ""} {
		errw.Reset()
		w.look(t.Context(), oneLook)
		if got := errw.String(); !strings.HasPrefix(strings.TrimPrefix(got, "approvald: "), want) || (want == "") != (got == "") {
			t.Errorf("look %d without a daemon said %q, want %q", i+1, got, want)
		}
	}
	if got := w.told; len(got) != 1 || got[0].Code != gateapi.TroubleNoDaemon || got[0].Since.IsZero() {
		t.Errorf("troubles without a daemon: %+v", got)
	}
	if l, err = gateapi.Listen(t.Context(), path, meant); err != nil {
		t.Fatal(err)
	}
	// It listens and does not answer, as a stopped daemon does.
	errw.Reset()
	w.look(t.Context(), 50*time.Millisecond)
	if got := errw.String(); !strings.Contains(got, "k: the daemon does not answer on its socket") {
		t.Errorf("beside a stopped daemon said %q", got)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		served <- gateapi.NewServer(gateapi.ServerOptions{Gate: meant, Ops: statusOnly{st: st}, Logger: zap.NewNop()}).Serve(ctx, l)
	}()
	errw.Reset()
	w.look(t.Context(), time.Minute)
	if got := errw.String(); !strings.Contains(got, "k: the daemon answers again") || len(w.told) != 0 {
		t.Errorf("after its return said %q, troubles %v", got, w.told)
	}
	c.Close()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
