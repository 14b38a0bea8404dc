package gateapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/rescue"
)

// drainLimit bounds how long Serve waits for calls in hand after its context
// ended. Waits end at once.
const drainLimit = time.Second

// ServerOptions says what a Server serves. All fields are required.
type ServerOptions struct {
	Gate   gate.Identity // told to clients before they say anything
	Ops    Ops
	Logger *zap.Logger
}

// Server answers agents on the gate's socket.
type Server struct {
	opts ServerOptions
	http *http.Server
	stop context.Context // ends waits when Serve is told to stop
	end  context.CancelFunc
	// broken holds the first panic of an answer. net/http would go on beside it, and nobody knows what state is left.
	broken chan error
}

// NewServer makes a server for one call of Serve.
func NewServer(opts ServerOptions) *Server {
	s := &Server{opts: opts, broken: make(chan error, 1)}
	s.stop, s.end = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler:           s.guarded(s.routes()),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       waitHold + 10*time.Second,
		WriteTimeout:      waitHold + 30*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          zap.NewStdLog(opts.Logger),
		ConnContext:       withPeer,
	}
	return s
}

// Serve answers connections of l until ctx ends, then ends waits at once,
// gives other calls up to a second, closes l and returns nil. An error means
// that l failed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- rescue.Run("socket listener", func() error { return s.http.Serve(l) }) }()
	defer s.end()
	select {
	case err := <-failed:
		return fmt.Errorf("serve agents' socket: %w", err)
	case err := <-s.broken:
		_ = s.http.Close()
		<-failed
		return err
	case <-ctx.Done():
	}
	s.end()
	drain, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	if err := s.http.Shutdown(drain); err != nil {
		s.opts.Logger.Info("agents' socket closed with calls in hand", zap.Error(err))
		if err := s.http.Close(); err != nil {
			s.opts.Logger.Debug("close agents' socket", zap.Error(err))
		}
	}
	<-failed
	return nil
}

// guarded has a panic of an answer end Serve.
func (s *Server) guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rescue.Go("socket answer", func(err error) {
			select {
			case s.broken <- err:
			default:
			}
			s.reply(w, nil, &gate.Error{Code: gate.CodeInternal, Message: "the daemon has failed and ends; what was asked may or may not be on disk"})
		}, func() { h.ServeHTTP(w, r) })
	})
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", func(w http.ResponseWriter, _ *http.Request) {
		s.reply(w, hello{Service: serviceName, Identity: s.opts.Gate}, nil)
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		st, err := s.opts.Ops.Status(r.Context())
		s.reply(w, st, err)
	})
	mux.HandleFunc("GET /v1/requests", s.list)
	mux.HandleFunc("POST /v1/requests", s.create)
	mux.HandleFunc("GET /v1/request", func(w http.ResponseWriter, r *http.Request) {
		req, err := s.opts.Ops.Get(r.Context(), r.URL.Query().Get("key"))
		s.replyRequest(w, req, err)
	})
	mux.HandleFunc("GET /v1/wait", s.wait)
	mux.HandleFunc("GET /v1/payload", func(w http.ResponseWriter, r *http.Request) {
		canonical, file, err := s.opts.Ops.Payload(r.Context(), r.URL.Query().Get("hash"))
		s.reply(w, payloadReply{Canonical: canonical, File: file}, err)
	})
	mux.HandleFunc("POST /v1/withdraw", s.asker(func(ctx context.Context, a Asker, b askerBody) (approvallog.Request, error) {
		return s.opts.Ops.Withdraw(ctx, Withdrawal{Asker: a, Reason: b.Reason})
	}))
	mux.HandleFunc("POST /v1/execution/start", s.asker(func(ctx context.Context, a Asker, b askerBody) (approvallog.Request, error) {
		a.Attempt = b.Attempt
		return s.opts.Ops.StartExecution(ctx, a, b.PayloadHash)
	}))
	mux.HandleFunc("POST /v1/execution/finish", s.asker(func(ctx context.Context, a Asker, b askerBody) (approvallog.Request, error) {
		return s.opts.Ops.FinishExecution(ctx, a, b.ExitCode)
	}))
	return mux
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var b createBody
	peer, err := s.read(w, r, &b)
	if err != nil {
		s.reply(w, nil, err)
		return
	}
	req, created, err := s.opts.Ops.Create(r.Context(), b.decode(peer))
	s.reply(w, encodeRequest(req, created), err)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	reqs, err := s.opts.Ops.List(r.Context())
	out := listReply{Requests: make([]requestReply, len(reqs))}
	for i, req := range reqs {
		out.Requests[i] = encodeRequest(req, false)
	}
	s.reply(w, out, err)
}

// wait is one poll: it answers with the request as it stands when it is decided
// or when the poll's time is over, and leaves it to the client to poll again.
func (s *Server) wait(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	ctx, cancel := context.WithTimeout(r.Context(), waitHold)
	defer cancel()
	defer context.AfterFunc(s.stop, cancel)()
	req, err := s.opts.Ops.Wait(ctx, key)
	if err != nil && ctx.Err() != nil && r.Context().Err() == nil {
		req, err = s.opts.Ops.Get(r.Context(), key)
	}
	s.replyRequest(w, req, err)
}

// asker handles the operations of whoever made a request.
func (s *Server) asker(do func(context.Context, Asker, askerBody) (approvallog.Request, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b askerBody
		peer, err := s.read(w, r, &b)
		if err != nil {
			s.reply(w, nil, err)
			return
		}
		req, err := do(r.Context(), Asker{Key: b.Key, Requester: b.Requester, Peer: peer}, b)
		s.replyRequest(w, req, err)
	}
}

// read decodes a body, strictly, and says who sent it.
func (s *Server) read(w http.ResponseWriter, r *http.Request, into any) (*gate.Peer, error) {
	peer, err := peerOf(r.Context())
	if err != nil {
		return nil, &gate.Error{Code: gate.CodeWrongIdentity, Message: "the kernel does not say who is calling", Err: err}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooBig, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &gate.Error{Code: gate.CodeInvalidRequest, Message: fmt.Sprintf("request of more than %d bytes: a payload may have at most %d", tooBig.Limit, gate.MaxPayload)}
	}
	if err != nil {
		return nil, &gate.Error{Code: gate.CodeInvalidRequest, Message: "request body could not be read", Err: err}
	}
	if err := decodeStrict(body, into); err != nil {
		return nil, &gate.Error{Code: gate.CodeInvalidRequest, Message: "request body: " + err.Error()}
	}
	return peer, nil
}

func (s *Server) replyRequest(w http.ResponseWriter, req approvallog.Request, err error) {
	s.reply(w, encodeRequest(req, false), err)
}

func (s *Server) reply(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		e := encodeError(err)
		if e.Error.Code == gate.CodeInternal && !errors.Is(err, context.Canceled) {
			s.opts.Logger.Error("agent's call failed", zap.Error(err))
		}
		v, status = e, statusOf(e.Error.Code)
		if e.Error.Code == gate.CodeFenced {
			// The next call belongs to the daemon that took the gate over.
			w.Header().Set("Connection", "close")
		}
	}
	body, err := Encode(v)
	if err != nil {
		s.opts.Logger.Error("encode reply to agent", zap.Error(err))
		http.Error(w, "reply could not be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		s.opts.Logger.Debug("agent went away before its reply", zap.Error(err))
	}
}

type peerKey struct{}

// peerResult is what the kernel said about a connection when it was accepted.
type peerResult struct {
	peer *gate.Peer
	err  error
}

func withPeer(ctx context.Context, c net.Conn) context.Context {
	cred, err := peerCred(c)
	if err != nil {
		return context.WithValue(ctx, peerKey{}, peerResult{err: err})
	}
	return context.WithValue(ctx, peerKey{}, peerResult{peer: &gate.Peer{UID: cred.Uid, PID: cred.Pid}})
}

func peerOf(ctx context.Context) (*gate.Peer, error) {
	p, ok := ctx.Value(peerKey{}).(peerResult)
	if !ok {
		return nil, errors.New("connection without credentials")
	}
	return p.peer, p.err
}
