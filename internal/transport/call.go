package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tgbotapi "github.com/go-telegram-bot-api/telegram-bot-api/v5"
)

// maxResponse is twice the largest batch that Telegram cuts (4 MiB).
const maxResponse = 8 << 20

var silenceLibrary = sync.OnceFunc(func() {
	// The library's logger is global and prints errors with the token's URL.
	_ = tgbotapi.SetLogger(log.New(io.Discard, "", 0))
})

// ValidateAPIBase checks the address of a Bot API server: https, or http to a
// loopback address, since the token travels in the path.
func ValidateAPIBase(base string) error {
	u, err := url.Parse(base)
	if err != nil {
		return errors.New("api_base is not a URL")
	}
	switch {
	case u.Host == "" || u.Hostname() == "":
		return errors.New("api_base must be a URL such as https://api.telegram.org")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return errors.New("api_base must not have a user, a query or a fragment")
	case u.Scheme == "https":
		return nil
	case u.Scheme != "http":
		return fmt.Errorf("api_base must start with https://, not %q", u.Scheme+"://")
	case !loopback(u.Hostname()):
		return fmt.Errorf("api_base over http would send the token in clear to %s: use https, http is allowed to loopback only", u.Host)
	}
	return nil
}

func loopback(host string) bool {
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	return strings.EqualFold(host, "localhost")
}

// newHTTPClient returns a client with its own connections: HTTP/1.1, where a dead
// connection takes one call with it and not all, and idle connections dropped
// before the usual proxies and NATs forget them.
func newHTTPClient(ipv4Only bool) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	transport := &http.Transport{
		Proxy:               proxy,
		Protocols:           protocols,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     30 * time.Second,
		MaxIdleConns:        16,
		MaxIdleConnsPerHost: 16,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if ipv4Only {
				network = "tcp4"
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
	return &http.Client{
		Transport: transport,
		// A redirect would carry the token to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// proxy is http.ProxyFromEnvironment without the proxy's password in its error.
func proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("the proxy address in the environment (HTTPS_PROXY, HTTP_PROXY) is not a URL")
	}
	return u, nil
}

// call makes one bounded call over the ordinary connections and decodes its
// result into out, unless out is nil.
func (c *Client) call(ctx context.Context, method string, p tgbotapi.Params, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	return c.do(ctx, c.calls, method, out, func(bot *tgbotapi.BotAPI) (*tgbotapi.APIResponse, error) {
		return bot.MakeRequest(method, p)
	})
}

// do runs one request of the library under ctx. The library's value is made for
// each call, since that is the only way to give it a context, and so that the
// token lies in no long-lived structure outside of its Secret.
func (c *Client) do(ctx context.Context, over *http.Client, method string, out any, request func(*tgbotapi.BotAPI) (*tgbotapi.APIResponse, error)) error {
	doer := &doer{client: over, dated: c.dated}
	doer.ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { doer.connected.Store(true) },
	})
	bot := &tgbotapi.BotAPI{Token: c.token.Reveal(), Client: doer}
	// The endpoint is a format string to the library.
	bot.SetAPIEndpoint(strings.ReplaceAll(c.base, "%", "%%") + "/bot%s/%s")
	began := time.Now()
	response, err := request(bot)
	if err != nil {
		err = c.failure(ctx, method, doer, response, err)
	}
	if c.observe != nil {
		e, _ := errors.AsType[*Error](err)
		if e == nil {
			e = &Error{}
		}
		c.observe(method, e.Class, time.Since(began), e.RetryAfter)
	}
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(response.Result, out); err != nil {
		return &Error{
			Method: method, Class: unsure(method), Code: http.StatusOK,
			Description: "answered ok with a result of an unexpected form",
		}
	}
	return nil
}

// failure turns whatever the library returned into an Error without secrets.
func (c *Client) failure(ctx context.Context, method string, d *doer, response *tgbotapi.APIResponse, err error) error {
	e := &Error{Method: method}
	refusal, refused := errors.AsType[*tgbotapi.Error](err)
	odd, isOdd := errors.AsType[*oddResponse](err)
	switch {
	case refused:
		e.Code = refusal.Code
		// UploadFiles leaves the code out of its error.
		if e.Code == 0 && response != nil {
			e.Code = response.ErrorCode
		}
		e.Description = cmp.Or(c.redactor.String(refusal.Message), "refused without a reason")
		e.MigrateTo = refusal.MigrateToChatID
		e.RetryAfter = seconds(refusal.RetryAfter)
		e.Class = classify(method, e.Code, refusal.Message, e.MigrateTo)
		if e.Class == ClassLimited && e.RetryAfter == 0 {
			e.RetryAfter = max(d.retryAfter, time.Second)
		}
	case isOdd:
		e.Code, e.Class = odd.status, odd.class(method)
		e.Description = c.redactor.String(odd.Error())
		if e.Class == ClassLimited {
			e.RetryAfter = max(d.retryAfter, time.Second)
		}
	default:
		if d.connected.Load() {
			e.Class = unsure(method)
		} else {
			e.Class = ClassTransient
		}
		e.err = c.redactor.Error(withoutURL(err))
		// The bare network error for a deadline does not say whose it was.
		if ctx.Err() != nil {
			e.err = ctx.Err()
		}
		e.Description = e.err.Error()
		if errors.Is(e.err, context.DeadlineExceeded) {
			e.Description = "no answer in time"
		}
	}
	return e
}

// seconds is a retry_after as a duration, kept within a day.
func seconds(n int) time.Duration {
	return time.Duration(min(max(n, 0), 24*60*60)) * time.Second
}

// withoutURL drops the part of a net/http error that repeats the request's URL,
// token included.
func withoutURL(err error) error {
	for {
		u, ok := errors.AsType[*url.Error](err)
		if !ok {
			return err
		}
		err = u.Err
	}
}

// doer is the library's HTTP client for one call.
type doer struct {
	ctx    context.Context
	client *http.Client
	// connected is set once there was a connection to write the request to;
	// without one it certainly was not executed.
	connected  atomic.Bool
	retryAfter time.Duration
	dated      func(said, read time.Time) // may be nil
}

// Do implements tgbotapi.HTTPClient. What it returns is a complete JSON object, or
// an error.
func (d *doer) Do(r *http.Request) (*http.Response, error) {
	if err := replayable(r); err != nil {
		return nil, err
	}
	response, err := d.client.Do(r.WithContext(d.ctx))
	if err != nil {
		return nil, withoutURL(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	if said, err := http.ParseTime(response.Header.Get("Date")); err == nil && d.dated != nil {
		d.dated(said, time.Now())
	}
	if n, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		d.retryAfter = seconds(n)
	}
	trimmed := bytes.TrimSpace(body)
	switch {
	case len(body) > maxResponse:
		return nil, &oddResponse{status: response.StatusCode, what: fmt.Sprintf("the answer is over %d MiB", maxResponse>>20)}
	case response.StatusCode >= 300 && response.StatusCode < 400:
		return nil, &oddResponse{status: response.StatusCode, what: "redirect" + redirectHost(response) + ", not followed"}
	case len(trimmed) == 0:
		return nil, &oddResponse{status: response.StatusCode, what: "empty answer"}
	case trimmed[0] != '{' || !json.Valid(trimmed):
		return nil, &oddResponse{status: response.StatusCode, what: "the answer is not JSON: something between here and Telegram, or not a Bot API server"}
	}
	response.Body = io.NopCloser(bytes.NewReader(trimmed))
	return response, nil
}

// replayable takes an upload out of the library's one-shot pipe, so that it goes
// out with a length and net/http can send it again over a fresh connection when
// the one it chose turned out to be closed before a byte was written.
func replayable(r *http.Request) error {
	if r.Body == nil || r.GetBody != nil {
		return nil
	}
	data, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil {
		return fmt.Errorf("building the upload: %w", err)
	}
	r.ContentLength = int64(len(data))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	r.Body, _ = r.GetBody()
	return nil
}

func redirectHost(r *http.Response) string {
	to, err := r.Location()
	if err != nil || to.Host == "" {
		return ""
	}
	return " to " + to.Host
}

// oddResponse is an HTTP answer that is not the Bot API's own.
type oddResponse struct {
	status int
	what   string
}

func (o *oddResponse) Error() string { return o.what }

// class: a front end that refuses has not passed the call on, one that fails may
// have. Only sizes and limits are taken as Telegram's own verdict.
func (o *oddResponse) class(method string) Class {
	switch {
	case o.status == http.StatusRequestEntityTooLarge, o.status == http.StatusRequestHeaderFieldsTooLarge:
		return ClassTooLarge
	case o.status == http.StatusTooManyRequests:
		return ClassLimited
	case o.status == http.StatusBadRequest:
		return ClassBadRequest
	case o.status >= 300 && o.status < 500:
		return ClassTransient
	default:
		return unsure(method)
	}
}
