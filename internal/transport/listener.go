package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
)

const (
	secretHeader = "X-Telegram-Bot-Api-Secret-Token"
	maxBody      = 1 << 20
	readTimeout  = 10 * time.Second
	// handleTimeout stays under the 60 s after which Telegram gives up a post.
	handleTimeout = 20 * time.Second
)

// open returns the listener of the options.
func (w *Webhook) open(ctx context.Context) (net.Listener, error) {
	if w.listener != nil {
		return w.listener, nil
	}
	network, address := "tcp", w.listen
	if path, found := strings.CutPrefix(w.listen, "unix:"); found {
		network, address = "unix", path
		if err := removeStaleSocket(ctx, path); err != nil {
			return nil, err
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("webhook listener: %w", err)
	}
	if network == "unix" {
		// The reverse proxy is let in by group.
		if err := os.Chmod(address, 0o660); err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("webhook socket: %w", err)
		}
	}
	return listener, nil
}

// removeStaleSocket removes the socket that a killed process left, and nothing
// else: no other kind of file, and no socket that still answers.
func removeStaleSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("webhook socket: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("webhook socket: %s exists and is not a socket: move it away", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return fmt.Errorf("webhook socket: another process listens on %s", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("webhook socket: %w", err)
	}
	return nil
}

func (w *Webhook) server(ctx context.Context, handle Handler) *http.Server {
	return &http.Server{
		Handler:           w.handler(ctx, handle),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      readTimeout + handleTimeout + 5*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// net/http's own lines would let strangers fill the log.
		ErrorLog: zap.NewStdLog(zap.NewNop()),
	}
}

// handler judges a post in the order of what it costs: path, method, secret, and
// only then the body. Every answer has an empty body: Telegram would execute a
// method named in it.
func (w *Webhook) handler(ctx context.Context, handle Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		refuse := func(status int) {
			// Closing spares reading the rest of a stranger's body.
			rw.Header().Set("Connection", "close")
			rw.WriteHeader(status)
		}
		given := r.Header.Values(secretHeader)
		switch {
		case r.URL.Path != w.path:
			refuse(http.StatusNotFound)
		case r.Method != http.MethodPost:
			rw.Header().Set("Allow", http.MethodPost)
			refuse(http.StatusMethodNotAllowed)
		case len(given) != 1 || !w.secret.matches(given[0]):
			if w.refused.Add(1)%refusedBeforeCheck == 0 {
				select {
				case w.alarm <- struct{}{}:
				default:
				}
			}
			refuse(http.StatusUnauthorized)
		case w.stopping.Load():
			refuse(http.StatusServiceUnavailable)
		case r.ContentLength > maxBody:
			refuse(http.StatusRequestEntityTooLarge)
		default:
			if status := w.take(ctx, rw, r, handle); status != http.StatusOK {
				refuse(status)
			}
		}
	})
}

// take reads one update and hands it on; it returns the answer's status. 503
// comes without Retry-After: a longer one than a tap lives would destroy the tap.
func (w *Webhook) take(ctx context.Context, rw http.ResponseWriter, r *http.Request, handle Handler) int {
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
	if err != nil {
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			return http.StatusRequestEntityTooLarge
		}
		return http.StatusRequestTimeout
	}
	u, err := DecodeUpdate(body, time.Now())
	if err != nil {
		w.mu.Lock()
		w.health.Skipped++
		w.mu.Unlock()
		w.log.Error("passed over an update that cannot be read; it may have been a tap: have the person tap again",
			zap.Int64("update", u.ID), zap.Error(err), zap.Int("bytes", len(body)))
		return http.StatusOK // the same bytes would never become readable
	}
	// Neither a stop nor a closed connection breaks off what is half done.
	working, cancel := withGrace(ctx, handleGrace)
	defer cancel()
	working, stop := context.WithTimeout(working, handleTimeout)
	defer stop()
	w.inHand.Add(1)
	err = handle(working, u)
	w.inHand.Add(-1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.storing = fmt.Sprintf("update %d could not be stored, Telegram is asked to send it again: %v", u.ID, err)
		w.log.Error(w.storing)
		return http.StatusServiceUnavailable
	}
	w.storing, w.health.LastSuccess = "", time.Now()
	w.delivered.Add(1)
	return http.StatusOK
}
