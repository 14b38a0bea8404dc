package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/rescue"
)

const (
	ioLimit     = 5 * time.Second
	scrapeLimit = 5 * time.Second
	drainLimit  = 500 * time.Millisecond
)

// Probes answer for the daemon. Each returns nil for yes, or the reason for no; both answer soon, whatever hangs.
type Probes struct {
	Alive func() error
	Ready func() error
}

// Listen opens HOST:PORT or unix:PATH. A socket that a killed daemon left is replaced; any other file, and a socket that answers, is
// not. The socket is for its owner and group.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	path, unix := strings.CutPrefix(address, "unix:")
	if !unix {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket: move it away", path)
	default:
		dialer := net.Dialer{Timeout: time.Second}
		if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("another process listens on %s", path)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// Serve answers /metrics, /healthz and /readyz on the listener until ctx ends, and closes it. An error means that the listener
// failed, or that an answer panicked.
func (m *Metrics) Serve(ctx context.Context, listener net.Listener, probes Probes, log *zap.Logger) error {
	failed := make(chan error, 2)
	mux := http.NewServeMux()
	handle := func(path string, h http.Handler) {
		mux.Handle("GET "+path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			rescue.Go("metrics answer", func(err error) {
				select {
				case failed <- err:
				default:
				}
				http.Error(w, "the daemon has failed", http.StatusInternalServerError)
			}, func() { h.ServeHTTP(w, r) })
		}))
	}
	handle("/metrics", m.handler())
	handle("/healthz", probe("alive", probes.Alive))
	handle("/readyz", probe("ready", probes.Ready))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: ioLimit, ReadTimeout: ioLimit, WriteTimeout: scrapeLimit + ioLimit, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       zap.NewStdLog(log),
	}
	go func() {
		failed <- rescue.Run("metrics listener", func() error { return server.Serve(listener) })
	}()
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("metrics listener: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	if server.Shutdown(drain) != nil {
		_ = server.Close() // a scrape that takes longer than the stop has time for
	}
	return err
}

// probe answers in one line of plain text: 200 for yes, 503 with the reason for no.
func probe(yes string, ask func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		status, text := http.StatusOK, yes
		if err := ask(); err != nil {
			status, text = http.StatusServiceUnavailable, "not "+yes+": "+strings.Join(strings.Fields(err.Error()), " ")
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintln(w, text) // who asked may have gone
	})
}
