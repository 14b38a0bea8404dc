package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/visible"
)

// deskFlags are the flags of the verbs that a person decides with.
type deskFlags struct {
	as, note string
	yes      bool
}

func (d *deskFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.as, "as", "", "who decides: human:`NAME`, an approver of the configuration")
	cmd.Flags().StringVar(&d.note, "note", "", "a reason, recorded and shown to the asker")
	cmd.Flags().BoolVar(&d.yes, "yes", false, "do not ask for confirmation")
}

func newApproveCommand(e *env) *cobra.Command {
	return newDecideCommand(e, verbApprove, "Approve a request at a terminal", dispatch.Approve)
}

func newRejectCommand(e *env) *cobra.Command {
	return newDecideCommand(e, verbReject, "Reject a request at a terminal", dispatch.Reject)
}

// The verbs that a person decides with.
const (
	verbApprove = "approve"
	verbReject  = "reject"
	verbRevoke  = "revoke"
)

const deskLong = `For a person at a terminal: stdin must be one, and --as must name an approver of
the configuration. The request and what it binds are shown before the question.
This works on the gate's files; the agents' socket has no such operation.`

func newDecideCommand(e *env, verb, short string, verdict dispatch.Verdict) *cobra.Command {
	var flags deskFlags
	cmd := &cobra.Command{
		Use:   verb + " KEY --as human:NAME",
		Short: short,
		Long:  short + ".\n\n" + deskLong,
		Example: "  approvald " + verb + ` deploy:api#41 --as human:alice
  approvald ` + verb + ` deploy:api#41 --as human:alice --note "agreed in the stand-up"`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := e.openDesk(verb, flags.as)
			if err != nil {
				return err
			}
			defer d.close()
			said, err := e.confirm(cmd.Context(), d, verb, args[0], flags.yes)
			if err != nil {
				return err
			}
			if said.State != approvallog.StatePending {
				e.ui.say("%s: it is %s already; nothing was changed", args[0], stateText(said))
				if flags.note != "" {
					e.ui.say("%s: the note was not recorded: a decision is not rewritten", args[0])
				}
				return e.decided(said)
			}
			decided, err := dispatch.DecideAtTerminal(cmd.Context(), d.Desk, args[0], verdict, flags.note)
			if err != nil {
				return err
			}
			if decided.Noted {
				e.ui.say("%s: your approval is noted; %d of %d approvers have agreed", args[0], decided.Have, decided.Need)
			}
			return e.decided(decided.Request)
		},
	}
	flags.add(cmd)
	return cmd
}

func newRevokeCommand(e *env) *cobra.Command {
	var flags deskFlags
	cmd := &cobra.Command{
		Use:     "revoke KEY --as human:NAME",
		Short:   "Take back a grant that was not used yet, at a terminal",
		Long:    "Take back a grant that was not used yet.\n\n" + deskLong,
		Example: `  approvald revoke deploy:api#41 --as human:alice --note "the window has closed"`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := e.openDesk(verbRevoke, flags.as)
			if err != nil {
				return err
			}
			defer d.close()
			if _, err := e.confirm(cmd.Context(), d, verbRevoke, args[0], flags.yes); err != nil {
				return err
			}
			req, err := dispatch.RevokeAtTerminal(cmd.Context(), d.Desk, args[0], flags.note)
			if err != nil {
				return err
			}
			return e.decided(req)
		},
	}
	flags.add(cmd)
	return cmd
}

// decided prints a request after a decision at the terminal.
func (e *env) decided(req approvallog.Request) error {
	if e.json {
		return e.ui.emit(req)
	}
	e.ui.line("%s", e.ui.bold(string(req.State)))
	return nil
}

// desk is a gate opened for a person's decision.
type desk struct {
	dispatch.Desk
	gate    *gate.Gate
	journal *approvallog.Log
}

func (d desk) close() {
	// Decisions are on disk before they are answered for.
	gate.LeaveSnapshot(d.journal)
	_ = errors.Join(d.journal.Close(), d.gate.Close())
}

// openDesk refuses everybody but an approver at a terminal, before it opens
// anything.
func (e *env) openDesk(verb, as string) (desk, error) {
	if !e.interactive() {
		return desk{}, &gate.Error{
			Code:    gate.CodeNotAllowed,
			Message: verb + " is for a person at a terminal, and stdin is none",
			Hint:    "decide on the phone, or run it in a terminal yourself",
		}
	}
	cfg, err := e.loadConfig()
	if err != nil {
		return desk{}, err
	}
	person, ok := strings.CutPrefix(as, "human:")
	if !ok || person == "" {
		return desk{}, usagef("--as human:NAME, an approver of "+cfg.File, "--as must name the person who decides")
	}
	if !slices.ContainsFunc(cfg.Approvers, func(a gate.Approver) bool { return a.ID == person }) {
		return desk{}, &gate.Error{
			Code:    gate.CodeNotAllowed,
			Message: fmt.Sprintf("human:%s is not an approver of gate %s", person, e.gate),
			Hint:    "approvers stand in " + cfg.File,
		}
	}
	g, err := gate.Open(cfg, gate.OpenOptions{})
	if err != nil {
		return desk{}, err
	}
	deliveries := dispatch.NewDeliveries()
	journal, err := cfg.Paths().OpenJournal(approvallog.Options{Fold: deliveries})
	if err != nil {
		return desk{}, errors.Join(err, g.Close())
	}
	return desk{
		Desk: dispatch.Desk{
			Log: dispatch.WrapLog(g.Log()), Journal: dispatch.WrapLog(journal),
			Requests: g.Requests(), Deliveries: deliveries, Rules: dispatch.RulesOf(cfg),
			ConfigHash: cfg.Hash, Person: person, UID: os.Getuid(),
		},
		gate: g, journal: journal,
	}, nil
}

// possible refuses what cannot be decided as the request stands, before anybody
// reads it and is asked. What is decided is judged again, on the log's exact head.
func (d desk) possible(verb string, req approvallog.Request) error {
	me := "human:" + d.Person
	what := fmt.Sprintf("%s %s: ", verb, visible.Quote(req.Key))
	rule := d.gate.Config().Rule(req.Class)
	if !slices.ContainsFunc(rule.Approvers, func(a gate.Approver) bool { return a.ID == d.Person }) {
		return &gate.Error{Code: gate.CodeNotAllowed, Message: what + me + " may not decide " + req.Class, Hint: "another approver has to decide"}
	}
	if verb == verbRevoke {
		switch {
		case req.State == approvallog.StateGranted:
			return nil
		case req.State.Approved():
			return &gate.Error{Code: gate.CodeAlreadyStarted, Message: what + "its grant has been used", Hint: "what ran cannot be taken back here"}
		}
		return &gate.Error{Code: gate.CodeNotGranted, Message: what + "it is " + visible.Line(stateText(req)), Hint: "there is no grant to take back"}
	}
	if req.State == approvallog.StatePending {
		if !slices.ContainsFunc(rule.Deciders(req.Requester, req.OnBehalfOf, req.UID()), func(a gate.Approver) bool { return a.ID == d.Person }) {
			return &gate.Error{Code: gate.CodeNotAllowed, Message: what + "it was asked by or for " + me + ", who may not decide it", Hint: "another approver has to decide"}
		}
		return nil
	}
	said := verb == verbApprove && req.State.Approved() || verb == verbReject && req.State == approvallog.StateRejected
	if said && req.Decision != nil && (req.Decision.By == me || slices.ContainsFunc(req.Approvals, func(a approvallog.Approval) bool { return a.By == me })) {
		return nil // saying again what one has said
	}
	return &gate.Error{Code: gate.CodeAlreadyDecided, Message: what + "it is " + visible.Line(stateText(req)), Hint: "nothing was changed"}
}

// confirm shows what is about to be decided, all of it, and asks. Of a person who
// has said the same before nothing is asked; the request is returned as it stands.
func (e *env) confirm(ctx context.Context, d desk, verb, key string, yes bool) (approvallog.Request, error) {
	req, err := d.gate.Get(ctx, key)
	if err != nil {
		return req, err
	}
	if err := d.possible(verb, req); err != nil {
		return req, err
	}
	if verb != verbRevoke && req.State != approvallog.StatePending {
		return req, nil
	}
	canonical, file, err := d.gate.Payload(req.PayloadHash)
	var text verbatim
	if err == nil {
		text, err = readPayloadText(canonical, file, req.PayloadHash)
	}
	if err != nil {
		return req, fmt.Errorf("payload of %s cannot be shown, so nothing is decided: %w", key, err)
	}
	then, err := followUpOf(ctx, gateapi.Local(d.gate, nil), req)
	if err != nil {
		return req, err
	}
	printRequest(e.ui.tell, req, then)
	e.ui.tell("payload:")
	e.ui.show("  | ", text)
	if yes {
		return req, nil
	}
	e.ui.ask("%s %s as human:%s? [y/N] ", verb, key, d.Person)
	answer, err := bufio.NewReader(e.stdin).ReadString('\n')
	if err != nil {
		e.ui.tell("")
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return req, nil
	default:
		return req, &gate.Error{Code: codeNotConfirmed, Message: "nothing was decided: the answer was not y"}
	}
}
