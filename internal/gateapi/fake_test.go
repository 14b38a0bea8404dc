package gateapi

import (
	"context"
	"errors"
	"sync"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// fakeOps is a gate in memory: what came in, and what to answer.
type fakeOps struct {
	mu      sync.Mutex
	reqs    map[string]approvallog.Request
	created []gate.NewRequest
	peers   []*gate.Peer
	err     error // answered by every call when set
	changed chan struct{}
	waiting chan string // told the key of each wait that has begun, as long as there is room; may be nil
}

func newFakeOps(reqs ...approvallog.Request) *fakeOps {
	f := &fakeOps{reqs: map[string]approvallog.Request{}, changed: make(chan struct{})}
	for _, r := range reqs {
		f.reqs[r.Key] = r
	}
	return f
}

// set changes a request and wakes every wait.
func (f *fakeOps) set(r approvallog.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reqs[r.Key] = r
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeOps) look(key string) (approvallog.Request, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return approvallog.Request{}, nil, f.err
	}
	r, ok := f.reqs[key]
	if !ok {
		return approvallog.Request{}, nil, &gate.Error{Code: gate.CodeNotFound, Message: "no request has the key " + key, Hint: "look"}
	}
	return r, f.changed, nil
}

func (f *fakeOps) Create(_ context.Context, r gate.NewRequest) (approvallog.Request, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return approvallog.Request{}, false, f.err
	}
	f.created = append(f.created, r)
	f.peers = append(f.peers, r.Peer)
	if old, ok := f.reqs[r.Key]; ok {
		return old, false, nil
	}
	f.reqs[r.Key] = approvallog.Request{Key: r.Key, Class: r.Class, Summary: r.Summary, Requester: r.Requester, State: approvallog.StatePending, Seq: 1}
	return f.reqs[r.Key], true, nil
}

func (f *fakeOps) Get(_ context.Context, key string) (approvallog.Request, error) {
	r, _, err := f.look(key)
	return r, err
}

func (f *fakeOps) List(context.Context) ([]approvallog.Request, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []approvallog.Request
	for _, r := range f.reqs {
		out = append(out, r)
	}
	return out, f.err
}

func (f *fakeOps) Wait(ctx context.Context, key string) (approvallog.Request, error) {
	for told := false; ; {
		r, changed, err := f.look(key)
		if err != nil || r.State != approvallog.StatePending {
			return r, err
		}
		if f.waiting != nil && !told {
			told = true
			select {
			case f.waiting <- key:
			default:
			}
		}
		select {
		case <-ctx.Done():
			return approvallog.Request{}, ctx.Err()
		case <-changed:
		}
	}
}

func (f *fakeOps) note(by Asker) (approvallog.Request, error) {
	r, _, err := f.look(by.Key)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers = append(f.peers, by.Peer)
	return r, err
}

func (f *fakeOps) Withdraw(_ context.Context, w Withdrawal) (approvallog.Request, error) {
	r, err := f.note(w.Asker)
	r.State, r.Ending = approvallog.StateWithdrawn, &approvallog.Ending{By: w.Requester, Reason: w.Reason}
	return r, err
}

func (f *fakeOps) StartExecution(_ context.Context, by Asker, payloadHash string) (approvallog.Request, error) {
	r, err := f.note(by)
	r.State, r.PayloadHash = approvallog.StateStarted, payloadHash
	return r, err
}

func (f *fakeOps) FinishExecution(_ context.Context, by Asker, exitCode int) (approvallog.Request, error) {
	r, err := f.note(by)
	r.State, r.Execution = approvallog.StateCompleted, &approvallog.Execution{By: by.Requester, ExitCode: &exitCode}
	return r, err
}

func (f *fakeOps) Payload(_ context.Context, hash string) (canonical, file []byte, err error) {
	if hash != "known" {
		return nil, nil, errors.New("open payloads/x: no such file")
	}
	return []byte(`{"a":"<&>"}`), []byte{0, 0xff, '\n'}, nil
}

func (f *fakeOps) Status(context.Context) (Status, error) {
	return Status{Gate: "g", Holder: &Holder{PID: 1, Mode: "poll", Epoch: 3}, Transport: Transport{Mode: "poll", Healthy: true}, Pending: 2}, f.err
}
