package gateapi

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/approvald/approvald/internal/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testGate is the gate that the tests serve and mean.
var testGate = gate.Identity{Name: "g", Homes: []string{"/gate/.approval"}}

// socketPath is a path short enough to bind, in a directory that Listen makes.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gateapi-") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "s.sock")
}

// serve runs a daemon's side on path until the test ends or stop is called.
func serve(t *testing.T, path string, ops Ops) (stop func()) {
	t.Helper()
	l, err := Listen(t.Context(), path, testGate)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, ops)
}

func serveOn(t *testing.T, l net.Listener, ops Ops) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- NewServer(ServerOptions{Gate: testGate, Ops: ops, Logger: zaptest.NewLogger(t)}).Serve(ctx, l)
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func client(t *testing.T, path string) *Client {
	t.Helper()
	c := NewClient(path, testGate)
	t.Cleanup(c.Close)
	return c
}
