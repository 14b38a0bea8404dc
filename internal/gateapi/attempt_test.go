package gateapi

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// losing is a way to the daemon on which the first answer to a start is lost.
type losing struct {
	http.RoundTripper
	after func() // what else happens then
	lost  atomic.Bool
}

func (l *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Path == "/v1/execution/start" && !l.lost.Swap(true) {
		resp.Body.Close()
		l.after()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

// TestALostAnswerToAStartLosesNoGrant: the caller is told that its execution was started, by the daemon or, once that is gone, by the
// files; another call is refused all the same.
func TestALostAnswerToAStartLosesNoGrant(t *testing.T) {
	for name, gone := range map[string]bool{"the answer is lost": false, "the daemon is gone": true} {
		t.Run(name, func(t *testing.T) {
			cfg := gate.Config{Home: filepath.Join(t.TempDir(), ".approval"), Gate: "g", Approvers: []gate.Approver{{ID: "alice", TelegramUserID: 1}}, Requests: gate.Limits{TTL: time.Hour, Quorum: 1, MaxPending: 10, PerRequesterPerHour: 10}}
			open := func() *gate.Gate {
				g, err := gate.Open(cfg, gate.OpenOptions{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { g.Close() })
				return g
			}
			g := open()
			payload := []byte(`{}`)
			if _, _, err := g.Create(t.Context(), gate.NewRequest{Key: "k", Class: "a.b", Summary: "s", Requester: "agent:ci", Payload: payload}); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Log().Update(t.Context(), func(tx *approvallog.Tx) error {
				_, err := tx.Append(approvallog.Draft{Event: approvallog.EventGranted, Actor: "human:alice", Task: "k", ActionKey: "k"})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			path := socketPath(t)
			stop := serve(t, path, Local(g, nil))
			sum := sha256.Sum256(payload)
			hash, by := hex.EncodeToString(sum[:]), Asker{Key: "k", Requester: "agent:ci"}
			opened := false
			f, _ := failover(t, path, func() (Ops, error) {
				opened = true
				return Local(open(), nil), nil
			})
			c := f.opts.Clients[0]
			c.http.Transport = &losing{RoundTripper: c.http.Transport, after: func() {
				if gone {
					stop()
				}
			}}
			if r, err := f.StartExecution(t.Context(), by, hash); err != nil || r.State != approvallog.StateStarted {
				t.Fatalf("started: %+v, %v", r, err)
			}
			if opened != gone {
				t.Errorf("the files were used: %t", opened)
			}
			_, err := f.StartExecution(t.Context(), by, hash)
			wantCode(t, err, gate.CodeAlreadyStarted)
			if rep, err := approvallog.VerifyAll(t.Context(), cfg.Paths().Log, cfg.Paths().Journal, approvallog.VerifyOptions{}); err != nil || rep.Records != 3 {
				t.Errorf("%+v, %v", rep, err)
			}
		})
	}
}
