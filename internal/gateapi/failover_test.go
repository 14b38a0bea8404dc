package gateapi

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// noFiles is a gate whose files this user may not read.
func noFiles() (Ops, error) {
	return nil, &gate.Error{Code: gate.CodeInternal, Message: "open log: permission denied", Err: fs.ErrPermission}
}

func failover(t *testing.T, path string, open func() (Ops, error)) (*Failover, chan string) {
	t.Helper()
	notices := make(chan string, 16)
	return NewFailover(FailoverOptions{
		Gate: "g", Clients: []*Client{client(t, path)}, Open: open,
		Notice: func(text string) { notices <- text },
	}), notices
}

// hang accepts connections and never answers, like a stopped daemon.
func hang(t *testing.T, path string) {
	t.Helper()
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func answerOther(t *testing.T, path string, handler http.HandlerFunc) {
	t.Helper()
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
}

// A daemon that cannot be asked is noticed before the request's text is sent,
// within seconds, and nobody is said to have refused.
func TestUnreachableGate(t *testing.T) {
	for name, set := range map[string]func(t *testing.T, path string){
		"no socket":     func(t *testing.T, path string) {},
		"stale socket":  stale,
		"regular file":  func(t *testing.T, path string) { mkdir(t, path); writeFile(t, path) },
		"hung":          hang,
		"other program": func(t *testing.T, path string) { answerOther(t, path, http.NotFound) },
		"other service": func(t *testing.T, path string) {
			answerOther(t, path, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(`{"service":"other"}`)) })
		},
		"other gate": func(t *testing.T, path string) {
			answerOther(t, path, func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte(`{"service":"approvald","gate":"staging"}`))
			})
		},
		"other gate of the same name": func(t *testing.T, path string) {
			answerOther(t, path, func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte(`{"service":"approvald","gate":"g","homes":["/other/.approval"]}`))
			})
		},
		"a daemon that does not name its home": func(t *testing.T, path string) {
			answerOther(t, path, func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte(`{"service":"approvald","gate":"g"}`))
			})
		},
		"unsafe directory": func(t *testing.T, path string) {
			serve(t, path, newFakeOps())
			if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			set(t, path)
			f, _ := failover(t, path, noFiles)
			_, _, err := f.Create(t.Context(), gate.NewRequest{Key: "k", Summary: "secret plan"})
			wantCode(t, err, CodeUnreachable)
			if err != nil && !strings.Contains(err.Error(), "nobody was asked") {
				t.Errorf("error %q does not say that nobody was asked", err)
			}

			files := newFakeOps()
			f, _ = failover(t, path, func() (Ops, error) { return files, nil })
			if _, created, err := f.Create(t.Context(), gate.NewRequest{Key: "k"}); err != nil || !created {
				t.Errorf("with readable files: created %v, %v", created, err)
			}
		})
	}
}

func stale(t *testing.T, path string) {
	t.Helper()
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDaemonBeforeFiles(t *testing.T) {
	path, ops := socketPath(t), newFakeOps()
	serve(t, path, ops)
	f, _ := failover(t, path, func() (Ops, error) {
		t.Error("files were opened although the daemon answers")
		return newFakeOps(), nil
	})
	if _, _, err := f.Create(t.Context(), gate.NewRequest{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if len(ops.created) != 1 {
		t.Errorf("%d requests reached the daemon, want 1", len(ops.created))
	}
}

// A refusal of the daemon is an answer: the files are not asked for another.
func TestRefusalIsNoReasonToFailOver(t *testing.T) {
	path, ops := socketPath(t), newFakeOps()
	ops.err = &gate.Error{Code: gate.CodeBusy, Message: "busy"}
	serve(t, path, ops)
	f, _ := failover(t, path, func() (Ops, error) { t.Error("files were opened"); return nil, errors.New("no") })
	_, _, err := f.Create(t.Context(), gate.NewRequest{Key: "k"})
	wantCode(t, err, gate.CodeBusy)
}

// A daemon that was fenced off has done nothing; whoever took the gate over and
// its socket's path does what was asked.
func TestAFencedDaemonsCallGoesToItsSuccessor(t *testing.T) {
	path, old, ops := socketPath(t), newFakeOps(), newFakeOps()
	serve(t, path, old)
	f, _ := failover(t, path, noFiles)
	if _, _, err := f.Create(t.Context(), gate.NewRequest{Key: "before"}); err != nil {
		t.Fatal(err)
	}
	old.mu.Lock()
	old.err = &gate.Error{Code: gate.CodeFenced, Message: "the gate has moved"}
	old.mu.Unlock()
	_, _, err := f.Create(t.Context(), gate.NewRequest{Key: "k"})
	wantCode(t, err, gate.CodeFenced) // nobody has taken it over yet

	serve(t, path, ops)
	if _, created, err := f.Create(t.Context(), gate.NewRequest{Key: "k"}); err != nil || !created || len(ops.created) != 1 {
		t.Errorf("created %v (%d), %v", created, len(ops.created), err)
	}
}

// Damage that the files show says more than a socket that is not there.
func TestDamageIsReportedAsSuch(t *testing.T) {
	f, _ := failover(t, socketPath(t), func() (Ops, error) {
		return nil, &gate.Error{Code: gate.CodeLogCorrupt, Message: "damaged"}
	})
	_, err := f.Get(t.Context(), "k")
	wantCode(t, err, gate.CodeLogCorrupt)
}

func pending(key string) approvallog.Request {
	return approvallog.Request{Key: key, State: approvallog.StatePending}
}

func granted(key string) approvallog.Request {
	return approvallog.Request{Key: key, State: approvallog.StateGranted}
}

type waited struct {
	req approvallog.Request
	err error
}

func startWait(ctx context.Context, f *Failover, key string) <-chan waited {
	got := make(chan waited, 1)
	go func() {
		r, err := f.Wait(ctx, key)
		got <- waited{r, err}
	}()
	return got
}

func TestWaitSurvivesRestartOfTheDaemon(t *testing.T) {
	path, ops := socketPath(t), newFakeOps(pending("k"))
	ops.waiting = make(chan string, 8)
	stop := serve(t, path, ops)
	f, notices := failover(t, path, noFiles)
	got := startWait(t.Context(), f, "k")
	<-ops.waiting
	stop()
	if text := <-notices; !strings.Contains(text, "went away") {
		t.Errorf("notice %q does not say that the gate went away", text)
	}
	serve(t, path, ops)
	if text := <-notices; !strings.Contains(text, "answers again") {
		t.Errorf("notice %q does not say that the gate is back", text)
	}
	<-ops.waiting
	ops.set(granted("k"))
	if w := <-got; w.err != nil || w.req.State != approvallog.StateGranted {
		t.Errorf("Wait = %+v, %v", w.req, w.err)
	}
}

// A daemon that dies between the request and the wait is waited for as well.
func TestWaitBeginsWhileTheDaemonIsAway(t *testing.T) {
	path, ops := socketPath(t), newFakeOps()
	stop := serve(t, path, ops)
	f, notices := failover(t, path, noFiles)
	if _, _, err := f.Create(t.Context(), gate.NewRequest{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	stop()
	got := startWait(t.Context(), f, "k")
	<-notices
	ops.set(granted("k"))
	serve(t, path, ops)
	if w := <-got; w.err != nil || w.req.State != approvallog.StateGranted {
		t.Errorf("Wait = %+v, %v", w.req, w.err)
	}
}

func TestWaitGoesOnByTheFiles(t *testing.T) {
	path, ops := socketPath(t), newFakeOps(pending("k"))
	ops.waiting = make(chan string, 8)
	stop := serve(t, path, ops)
	f, _ := failover(t, path, func() (Ops, error) { return ops, nil })
	got := startWait(t.Context(), f, "k")
	<-ops.waiting
	stop()
	<-ops.waiting // now the files' own
	ops.set(granted("k"))
	if w := <-got; w.err != nil || w.req.State != approvallog.StateGranted {
		t.Errorf("Wait = %+v, %v", w.req, w.err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	for _, down := range []bool{false, true} {
		path, ops := socketPath(t), newFakeOps(pending("k"))
		ops.waiting = make(chan string, 8)
		stop := serve(t, path, ops)
		ctx, cancel := context.WithCancelCause(t.Context())
		f, notices := failover(t, path, noFiles)
		got := startWait(ctx, f, "k")
		<-ops.waiting
		if down {
			stop()
			<-notices
		}
		why := errors.New("enough")
		cancel(why)
		if w := <-got; !errors.Is(w.err, why) {
			t.Errorf("daemon down %v: Wait = %+v, %v, want the context's cause", down, w.req, w.err)
		}
	}
}

func TestWaitForUnknownKeyFails(t *testing.T) {
	path := socketPath(t)
	serve(t, path, newFakeOps())
	f, _ := failover(t, path, noFiles)
	_, err := f.Wait(t.Context(), "nothing")
	wantCode(t, err, gate.CodeNotFound)

	f, _ = failover(t, socketPath(t), noFiles)
	_, err = f.Wait(t.Context(), "k")
	wantCode(t, err, CodeUnreachable)
}

// Fifty waiting agents do not keep the daemon from stopping.
func TestServeStopsWithManyWaiting(t *testing.T) {
	path, ops := socketPath(t), newFakeOps(pending("k"))
	ops.waiting = make(chan string, 64)
	stop := serve(t, path, ops)
	ctx, cancel := context.WithCancel(t.Context())
	var all []<-chan waited
	for range 50 {
		f, _ := failover(t, path, noFiles)
		all = append(all, startWait(ctx, f, "k"))
	}
	for range 50 {
		<-ops.waiting
	}
	stop()
	cancel()
	for _, got := range all {
		<-got
	}
}
