package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.uber.org/zap"
)

const (
	secretHeader = "X-Telegram-Bot-Api-Secret-Token"
	maxBody      = 1 << 20
	readTimeout  = 10 * time.Second
	// handleTimeout stays under the 60 s after which Telegram gives up a post.
	handleTimeout = 20 * time.Second
	// maxSkip is how long a refused post's body may be for its connection to be kept:
	// reading that much costs less than another connection, which a reverse proxy
	// would have to make for each of a stranger's posts.
	maxSkip = 4 << 10
)

func (w *Webhook) server(ctx context.Context, handle Handler) *http.Server {
	server := &http.Server{
		Handler:           w.handler(ctx, handle),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      readTimeout + handleTimeout + 5*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// net/http would answer "OPTIONS *" by itself.
		DisableGeneralOptionsHandler: true,
		// net/http's own lines would let strangers fill the log.
		ErrorLog: zap.NewStdLog(zap.NewNop()),
	}
	w.conns.attach(server)
	return server
}

// handler judges a post in the order of what it costs: path, method, secret, and
// only then the body. Every answer has an empty body: Telegram would execute a
// method named in it.
func (w *Webhook) handler(ctx context.Context, handle Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		refuse := func(status int) {
			if r.ContentLength < 0 || r.ContentLength > maxSkip {
				// Closing spares reading the rest of a stranger's body.
				rw.Header().Set("Connection", "close")
			}
			rw.WriteHeader(status)
		}
		given := r.Header.Values(secretHeader)
		switch {
		case r.URL.EscapedPath() != w.path:
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
			// What lacks tells an operator whether a proxy passes the header on; that one is wanted is no secret.
			rw.Header().Set("WWW-Authenticate", challenge(len(given)))
			refuse(http.StatusUnauthorized)
		case w.stopping.Load():
			refuse(http.StatusServiceUnavailable)
		case r.ContentLength > maxBody:
			refuse(http.StatusRequestEntityTooLarge)
		default:
			w.conns.keep(r)
			if status := w.take(ctx, rw, r, handle); status != http.StatusOK {
				refuse(status)
			}
		}
	})
}

// What the 401 of a webhook says in WWW-Authenticate.
const (
	SecretMissing  = `Secret realm="approvald", error="missing"`  // no secret arrived
	SecretWrong    = `Secret realm="approvald", error="wrong"`    // one that is not this gate's
	SecretRepeated = `Secret realm="approvald", error="repeated"` // more than one
)

// SecretHeader is where Telegram puts the webhook's secret.
const SecretHeader = secretHeader

func challenge(given int) string {
	switch given {
	case 0:
		return SecretMissing
	case 1:
		return SecretWrong
	default:
		return SecretRepeated
	}
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
