package gateapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// Time limits of a client. A daemon that is stopped (SIGSTOP) accepts
// connections and never answers, so each step has its own.
const (
	helloLimit = time.Second
	callLimit  = 10 * time.Second
)

// UnreachableError reports that no daemon answered on the socket. Sent tells
// whether the call itself had been sent, so that it may have had its effect;
// repeating it under the same key is safe.
type UnreachableError struct {
	Path string
	Sent bool
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("socket %s: %s", e.Path, unreachableWhy(e.Err))
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// NobodyThere reports that no daemon listens at the path, as when none runs.
func (e *UnreachableError) NobodyThere() bool {
	return errors.Is(e.Err, fs.ErrNotExist) || errors.Is(e.Err, syscall.ECONNREFUSED)
}

func unreachableWhy(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no daemon runs (no socket there)"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "no daemon runs (its socket was left behind)"
	case errors.Is(err, fs.ErrPermission):
		return "no permission to connect"
	case errors.Is(err, context.DeadlineExceeded):
		return "the daemon does not answer"
	default:
		return err.Error()
	}
}

// Client speaks to a gate's daemon. Its calls fail with [*UnreachableError]
// when the daemon does not answer, and with the gate's own [*gate.Error] when
// it does and refuses.
type Client struct {
	path string
	gate gate.Identity
	http *http.Client

	mu      sync.Mutex
	greeted bool
}

var _ Ops = (*Client)(nil)

// NewClient makes a client for the socket at path. It connects when first used,
// and tells its peer nothing before that has proved to be the daemon of the very
// gate that is meant, run by the user whom the socket's directory belongs to.
func NewClient(path string, meant gate.Identity) *Client {
	c := &Client{path: path, gate: meant}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: c.dial,
			// One command makes a handful of calls, one after the other.
			MaxIdleConns:    1,
			IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Close lets go of the connection.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, err
	}
	if err := checkListener(c.path, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Create implements Ops.
func (c *Client) Create(ctx context.Context, r gate.NewRequest) (approvallog.Request, bool, error) {
	var reply requestReply
	err := c.call(ctx, http.MethodPost, "/v1/requests", nil, encodeNew(r), &reply)
	return reply.decode(), reply.Created, err
}

// Get implements Ops.
func (c *Client) Get(ctx context.Context, key string) (approvallog.Request, error) {
	var reply requestReply
	err := c.call(ctx, http.MethodGet, "/v1/request", url.Values{"key": {key}}, nil, &reply)
	return reply.decode(), err
}

// List implements Ops.
func (c *Client) List(ctx context.Context) ([]approvallog.Request, error) {
	var reply listReply
	if err := c.call(ctx, http.MethodGet, "/v1/requests", nil, nil, &reply); err != nil {
		return nil, err
	}
	reqs := make([]approvallog.Request, len(reply.Requests))
	for i, r := range reply.Requests {
		reqs[i] = r.decode()
	}
	return reqs, nil
}

// Wait implements Ops. It fails with [*UnreachableError] as soon as the daemon
// goes away; [Failover] is what waits on.
func (c *Client) Wait(ctx context.Context, key string) (approvallog.Request, error) {
	for {
		var reply requestReply
		err := c.callWithin(ctx, waitHold+callLimit, http.MethodGet, "/v1/wait", url.Values{"key": {key}}, nil, &reply)
		if gate.ErrorCode(err) == gate.CodeNotYet && ctx.Err() == nil {
			continue // a follow-up that is still to come, after a poll's whole time
		}
		if err != nil {
			return approvallog.Request{}, err
		}
		if r := reply.decode(); r.State != approvallog.StatePending {
			return r, nil
		}
	}
}

// Withdraw implements Ops.
func (c *Client) Withdraw(ctx context.Context, w Withdrawal) (approvallog.Request, error) {
	return c.post(ctx, "/v1/withdraw", askerBody{Key: w.Key, Requester: w.Requester, Reason: w.Reason})
}

// StartExecution implements Ops.
func (c *Client) StartExecution(ctx context.Context, by Asker, payloadHash string) (approvallog.Request, error) {
	return c.post(ctx, "/v1/execution/start", askerBody{Key: by.Key, Requester: by.Requester, PayloadHash: payloadHash, Attempt: by.Attempt})
}

// FinishExecution implements Ops.
func (c *Client) FinishExecution(ctx context.Context, by Asker, exitCode int) (approvallog.Request, error) {
	return c.post(ctx, "/v1/execution/finish", askerBody{Key: by.Key, Requester: by.Requester, ExitCode: exitCode})
}

// Payload implements Ops.
func (c *Client) Payload(ctx context.Context, hash string) (canonical, file []byte, err error) {
	var reply payloadReply
	err = c.call(ctx, http.MethodGet, "/v1/payload", url.Values{"hash": {hash}}, nil, &reply)
	return reply.Canonical, reply.File, err
}

// Status implements Ops.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var reply Status
	err := c.call(ctx, http.MethodGet, "/v1/status", nil, nil, &reply)
	return reply, err
}

func (c *Client) post(ctx context.Context, path string, body askerBody) (approvallog.Request, error) {
	var reply requestReply
	err := c.call(ctx, http.MethodPost, path, nil, body, &reply)
	return reply.decode(), err
}

func (c *Client) call(ctx context.Context, method, path string, query url.Values, body, reply any) error {
	return c.callWithin(ctx, callLimit, method, path, query, body, reply)
}

// callWithin greets the daemon once and then makes the call. The caller's own
// context ending is reported as such, never as an unreachable daemon.
func (c *Client) callWithin(ctx context.Context, limit time.Duration, method, path string, query url.Values, body, reply any) error {
	if err := c.greet(ctx); err != nil {
		return c.unreachable(ctx, false, err)
	}
	err := c.roundTrip(ctx, limit, method, path, query, body, reply)
	if err == nil {
		return nil
	}
	refusal, refused := errors.AsType[*gate.Error](err)
	if !refused || refusal.Code == gate.CodeFenced {
		// Whoever answers next may be somebody else.
		c.mu.Lock()
		c.greeted = false
		c.mu.Unlock()
	}
	if refused {
		return refusal
	}
	return c.unreachable(ctx, true, err)
}

func (c *Client) unreachable(ctx context.Context, sent bool, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &UnreachableError{Path: c.path, Sent: sent, Err: err}
}

func (c *Client) greet(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greeted {
		return nil
	}
	h, err := c.hello(ctx)
	if err != nil {
		return err
	}
	if !c.gate.IsServedBy(h.Identity) {
		return otherGateError{h.Identity}
	}
	c.greeted = true
	return nil
}

// hello asks who answers there.
func (c *Client) hello(ctx context.Context) (h hello, err error) {
	if err := c.roundTrip(ctx, helloLimit, http.MethodGet, "/v1/hello", nil, nil, &h); err != nil {
		return hello{}, err
	}
	if h.Service != serviceName {
		return hello{}, errors.New("what answers there is not approvald")
	}
	return h, nil
}

// otherGateError reports a daemon that serves another gate than the one meant.
type otherGateError struct{ served gate.Identity }

func (e otherGateError) Error() string {
	text := "the daemon there serves another gate, " + e.served.Name
	if len(e.served.Homes) > 0 {
		text += " with the home " + e.served.Homes[0]
	}
	return text
}

func (c *Client) roundTrip(ctx context.Context, limit time.Duration, method, path string, query url.Values, body, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var send io.Reader
	if body != nil {
		if name, bad := notText(body); bad {
			return &gate.Error{Code: gate.CodeInvalidRequest, Hint: "nothing was sent; use UTF-8", Message: "the member " + name + " is not valid UTF-8"}
		}
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode call: %w", err)
		}
		send = bytes.NewReader(b)
	}
	u := url.URL{Scheme: "http", Host: serviceName, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), send)
	if err != nil {
		return fmt.Errorf("make call: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// url.Error would repeat the whole query, and with it the key.
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var e errorReply
		if json.Unmarshal(got, &e) != nil || e.Error.Code == "" {
			return fmt.Errorf("unexpected reply: %s", resp.Status)
		}
		return e.decode()
	}
	if err := json.Unmarshal(got, reply); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	return nil
}
