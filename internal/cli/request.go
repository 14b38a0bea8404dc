package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
)

// askFlags are the flags that describe a request.
type askFlags struct {
	class, summary, task, as string
	exclusive, onBehalfOf    string
	then                     string
	ttl                      time.Duration
	quorum                   int
	irreversible, again      bool
}

func (a *askFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.class, "class", "", "dotted name `C` of the side effect, such as deploy.production")
	f.StringVar(&a.summary, "summary", "", "one line of `TEXT` that says what and why; shown as not checked")
	f.StringVar(&a.task, "task", "", "`TASK` that the request belongs to (default: its key)")
	f.StringVar(&a.as, "as", "", "requester `NAME`, written as agent:NAME (default: the user's name)")
	f.StringVar(&a.onBehalfOf, "on-behalf-of", "", "`human:NAME` for whom this is asked; where four eyes are required, another person has to decide")
	f.DurationVar(&a.ttl, "ttl", 0, "for what time `D` it may be decided (default: the gate's; never more than that)")
	f.IntVar(&a.quorum, "quorum", 0, "how many `N` approvers must agree (default: the gate's; never fewer than that)")
	f.StringVar(&a.exclusive, "exclusive", "", "`KEY` that only one pending request may hold")
	f.StringVar(&a.then, "then", "", "`FILE` that describes what is asked for once this was granted and executed (TOML, with the names of these flags)")
	f.BoolVar(&a.irreversible, "irreversible", false, "the effect cannot be undone; shown on the phone")
	f.BoolVar(&a.again, "again", false, "ask afresh when this key's request has ended")
}

// request is the flags as a request without its payload.
func (a *askFlags) request(cmd *cobra.Command, key string) (gate.NewRequest, error) {
	f := cmd.Flags()
	switch {
	case a.class == "":
		return gate.NewRequest{}, usagef("--class deploy.production", "--class is missing")
	case a.summary == "":
		return gate.NewRequest{}, usagef(`--summary "restart the API after the config change"`, "--summary is missing")
	case f.Changed("ttl") && a.ttl <= 0:
		return gate.NewRequest{}, usagef("--ttl 1h", "--ttl %s: give a time above zero", a.ttl)
	case f.Changed("quorum") && a.quorum < 1:
		return gate.NewRequest{}, usagef("--quorum 2", "--quorum %d: give a number above zero", a.quorum)
	case f.Changed("on-behalf-of") && a.onBehalfOf == "":
		return gate.NewRequest{}, usagef("--on-behalf-of human:alice", "--on-behalf-of is empty")
	case f.Changed("exclusive") && a.exclusive == "":
		return gate.NewRequest{}, usagef("--exclusive deploy", "--exclusive is empty")
	case f.Changed("then") && a.then == "":
		return gate.NewRequest{}, usagef("--then verify.toml", "--then is empty")
	}
	by, err := requester(a.as)
	if err != nil {
		return gate.NewRequest{}, err
	}
	var then *gate.FollowUp
	if a.then != "" {
		if then, err = gate.ReadFollowUp(a.then); err != nil {
			return gate.NewRequest{}, err
		}
	}
	uid := uint32(os.Geteuid())
	return gate.NewRequest{
		Key: key, Class: a.class, Summary: a.summary, Task: a.task, Requester: by,
		TTL: a.ttl, Quorum: a.quorum, Exclusive: a.exclusive,
		Reversible: !a.irreversible, Again: a.again, OnBehalfOf: a.onBehalfOf, WriterUID: &uid, Then: then,
	}, nil
}

func newRequestCommand(e *env) *cobra.Command {
	var ask askFlags
	var limits waitFlags
	var payload string
	var wait bool
	cmd := &cobra.Command{
		Use:   "request [KEY] --class C --summary TEXT",
		Short: "Ask for approval",
		Long: `Ask for approval. The key makes the request safe to repeat: the same key with the
same content is the same request, with other content it is refused (exit code 7).
Without a key one is made. The key goes to stdout; with --wait the end of the
request follows it.

A payload that is JSON is bound as JSON; other text as text; anything else as a
file. Exactly these bytes are shown to the person who decides.

With --then the gate's daemon asks for a second request by itself, once this one
was granted and its execution has completed, as approvald run records it.`,
		Example: `  approvald request deploy:api#41 --class deploy.production \
    --summary "restart after config change" --payload plan.json --wait --timeout 10m`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("approvald request --help", "request takes one KEY, not %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := limits.check(cmd); err != nil {
				return err
			}
			if !wait && (cmd.Flags().Changed("timeout") || limits.withdraw) {
				return usagef("approvald request --wait ...", "--timeout and --withdraw-on-timeout belong to --wait")
			}
			key := newKey()
			if len(args) == 1 {
				key = args[0]
			}
			req, err := ask.request(cmd, key)
			if err != nil {
				return err
			}
			req.WaitFor = limits.waitFor()
			if cmd.Flags().Changed("payload") {
				name, data, err := e.readPayload(payload)
				if err != nil {
					return err
				}
				if req.Payload, req.File, err = gate.BindPayload(name, data); err != nil {
					return err
				}
			}
			return e.file(cmd.Context(), req, wait, limits)
		},
	}
	ask.add(cmd)
	limits.add(cmd)
	cmd.Flags().StringVar(&payload, "payload", "", "`FILE` with what is about to be used, - for stdin")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the answer; exit code 0 only when it is granted")
	return cmd
}

// created is a request as `request` prints it.
type created struct {
	approvallog.Request
	Created bool `json:"created"`
}

// file makes the request and, if asked to, waits for its end.
func (e *env) file(ctx context.Context, r gate.NewRequest, wait bool, limits waitFlags) error {
	ops, done, err := e.ops(false)
	if err != nil {
		return err
	}
	defer done()
	by := gateapi.Asker{Key: r.Key, Requester: r.Requester}
	if wait {
		// From here on, so that a signal finds the request either not made or
		// taken care of.
		var stop func()
		ctx, stop = withSignals(ctx, r.Key)
		defer stop()
	}
	req, isNew, err := e.create(ctx, ops, r)
	if err != nil && ctx.Err() != nil {
		return e.interrupted(ctx, ops, by, limits)
	}
	if err != nil {
		return err
	}
	if !e.json {
		// Before blocking: who is killed while it waits must know the key.
		e.ui.line("%s", req.Key)
	}
	e.tellFiled(ops, req, isNew)
	if !wait {
		if e.json {
			return e.ui.emit(created{req, isNew})
		}
		return nil
	}
	end, err := e.await(ctx, ops, by, limits)
	if err != nil {
		return err
	}
	if !e.json {
		return e.answer(end)
	}
	type createdWaited struct {
		created
		Troubles []gateapi.Trouble `json:"troubles"`
	}
	if err := e.ui.emit(createdWaited{created{end.Request, isNew}, end.Troubles}); err != nil {
		return err
	}
	return e.settleWait(end.Request)
}

// create files the request. Who asks again for what an earlier run began is told
// when nobody knows how that one ended.
func (e *env) create(ctx context.Context, ops gateapi.Ops, r gate.NewRequest) (approvallog.Request, bool, error) {
	var before approvallog.Request
	if r.Again {
		// What there is to refuse, Create refuses.
		before, _ = ops.Get(ctx, r.Key)
	}
	req, isNew, err := ops.Create(ctx, r)
	if err == nil && isNew && before.State == approvallog.StateStarted {
		e.ui.say("%s: granted before, and run since %s; the runner is gone, so how that ended is not known: make sure that it is over",
			r.Key, stamp(before.Execution.StartedAt))
	}
	return req, isNew, err
}

// tellFiled says on stderr, at once, what became of the request.
func (e *env) tellFiled(ops *gateapi.Failover, req approvallog.Request, isNew bool) {
	switch {
	case isNew:
		e.ui.say("%s: asked; it can be decided until %s", req.Key, stamp(req.ExpiresAt))
	case req.State == approvallog.StatePending:
		e.ui.say("%s: asked already; it can be decided until %s", req.Key, stamp(req.ExpiresAt))
	default:
		e.ui.say("%s: asked before; %s", req.Key, stateText(req))
	}
	if req.State != approvallog.StatePending {
		return
	}
	if req.FollowUpKey != "" {
		e.ui.say("%s: asked for once this was granted and executed", req.FollowUpKey)
	}
	if !ops.ByFiles() {
		return
	}
	if why := ops.Obstacle(); why != "" {
		e.ui.say("the daemon was not asked (%s): the request is in the log, where the gate's daemon finds it", why)
		return
	}
	e.ui.say("no daemon answers: the request is in the log and reaches the phone once approvald up runs")
}

// newKey makes a key that nobody else has: 128 random bits.
func newKey() string { return "req-" + rand.Text() }

// readPayload reads what is to be bound, once: later changes of the file are
// not what a person is asked about.
func (e *env) readPayload(path string) (name string, data []byte, err error) {
	var in io.Reader = e.stdin
	name = "stdin"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", nil, usagef("--payload FILE, or --payload - for stdin", "payload: %s", err)
		}
		defer f.Close()
		in, name = f, filepath.Base(path)
	}
	data, err = io.ReadAll(io.LimitReader(in, gate.MaxPayload+1))
	if err != nil {
		return "", nil, fmt.Errorf("read payload %s: %w", path, err)
	}
	return name, data, nil
}
