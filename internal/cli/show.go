package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/procid"
	"github.com/approvald/approvald/internal/visible"
)

func newShowCommand(e *env) *cobra.Command {
	var bound bool
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show one request, with what it binds and how it stands",
		Long: `Show one request, with what it binds and how it stands.

With --payload the bound bytes alone go to stdout: a file's or a text's own bytes,
else the canonical JSON. Compare them before you use what was approved.`,
		Example: `  approvald show deploy:api#41
  approvald show deploy:api#41 --payload | diff - plan.json`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if bound && e.json {
				return usagef("approvald show KEY --payload, or approvald show KEY --json", "--payload writes the bound bytes as they are, which --json cannot")
			}
			e.looksOnly = true
			ops, done, err := e.ops(true)
			if err != nil {
				return err
			}
			defer done()
			req, err := ops.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var then *next
			if !bound {
				if then, err = followUpOf(cmd.Context(), ops, req); err != nil {
					return err
				}
			}
			if e.json {
				return e.ui.emit(shown{req, then})
			}
			canonical, file, err := ops.Payload(cmd.Context(), req.PayloadHash)
			if bound {
				if err != nil {
					return err
				}
				e.ui.raw(boundBytes(canonical, file))
				return nil
			}
			printRequest(e.ui.line, req, then)
			var text verbatim
			if err == nil {
				text, err = readPayloadText(canonical, file, req.PayloadHash)
			}
			if err != nil {
				return err
			}
			e.ui.line("payload:")
			e.ui.block("  | ", text)
			return nil
		},
	}
	cmd.Flags().BoolVar(&bound, "payload", false, "write the bound bytes to stdout and nothing else")
	return cmd
}

// boundBytes are the bytes that the asker gave: of a file or a text its own,
// else the JSON.
func boundBytes(canonical, file []byte) []byte {
	if file != nil {
		return file
	}
	var t struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
	if json.Unmarshal(canonical, &t) != nil || t.Kind != "text" {
		return canonical
	}
	// JSON of the asker's own may look like a text and hold more than that.
	if bound, _, err := gate.BindPayload("", []byte(t.Text)); err != nil || !bytes.Equal(bound, canonical) {
		return canonical
	}
	return []byte(t.Text)
}

// readPayloadText is the whole payload as the phone shows it. A file that is not
// text is named by its size and hash.
func readPayloadText(canonical, file []byte, hash string) (verbatim, error) {
	body, err := dispatch.ReadBody(canonical, file, hash)
	if err != nil {
		return "", err
	}
	if body.File && body.Text == "" {
		d := body.Document
		return verbatim(visible.Line(fmt.Sprintf("file %s, %d bytes, sha256 %s", quoteArg(d.Name), len(d.Data), d.SHA256))), nil
	}
	return verbatim(body.Text), nil
}

// printRequest prints what the gate knows first and what the asker claims last,
// and marks it as such.
func printRequest(line func(string, ...any), r approvallog.Request, then *next) {
	line("key:       %s", r.Key)
	line("class:     %s%s", r.Class, irreversible(r))
	if r.Task != r.Key {
		line("task:      %s", r.Task)
	}
	asker := r.Requester
	if r.Peer != nil {
		asker += fmt.Sprintf(" (uid %d, pid %d)", r.Peer.UID, r.Peer.PID)
	} else if r.WriterUID != nil {
		asker += fmt.Sprintf(" (uid %d, by its own word)", *r.WriterUID)
	}
	line("requester: %s", asker)
	if r.OnBehalfOf != "" {
		line("on behalf: %s", r.OnBehalfOf)
	}
	line("state:     %s", stateText(r))
	line("asked:     %s", stamp(r.RequestedAt))
	if !r.ExpiresAt.IsZero() {
		line("deadline:  %s%s", stamp(r.ExpiresAt), remaining(r))
	}
	line("quorum:    %d", r.Quorum)
	if r.Exclusive != "" {
		line("exclusive: %s", r.Exclusive)
	}
	if then != nil {
		line("then:      %s", then.text())
	}
	line("sha256:    %s", r.PayloadHash)
	line("record:    %d", r.Seq)
	line(`says, not checked: "%s"`, r.Summary)
}

func irreversible(r approvallog.Request) string {
	if r.Reversible {
		return ""
	}
	return ", cannot be undone"
}

func remaining(r approvallog.Request) string {
	left := time.Until(r.ExpiresAt)
	if r.State != approvallog.StatePending || left <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%s left)", about(left))
}

// stateText says in words how a request stands and by whom.
func stateText(r approvallog.Request) string {
	text := string(r.State)
	d := r.Decision
	switch r.State {
	case approvallog.StateGranted, approvallog.StateRejected:
		if d != nil {
			text += fmt.Sprintf(" by %s at %s (record %d)", deciders(r), stamp(d.At), d.Seq)
			if d.Note != "" {
				text += ": " + d.Note
			}
		}
	case approvallog.StateExpired:
		text += ": nobody decided until " + stamp(r.ExpiresAt)
	case approvallog.StateWithdrawn, approvallog.StateRevoked:
		if r.Ending != nil {
			text += fmt.Sprintf(" by %s at %s", r.Ending.By, stamp(r.Ending.At))
			if r.Ending.Reason != "" {
				text += " (" + r.Ending.Reason + ")"
			}
		}
	case approvallog.StateStarted, approvallog.StateCompleted, approvallog.StateFailed:
		if d != nil {
			text = fmt.Sprintf("granted by %s at %s (record %d), execution %s", deciders(r), stamp(d.At), d.Seq, r.State)
		}
		text += executionText(r.Execution)
	}
	return text
}

// deciders are all who made up the decision: its record names one, and a quorum
// has several.
func deciders(r approvallog.Request) string {
	if r.State == approvallog.StateRejected || len(r.Approvals) < 2 {
		return r.Decision.By
	}
	names := make([]string, len(r.Approvals))
	for i, a := range r.Approvals {
		names[i] = a.By
	}
	return strings.Join(names, ", ")
}

// executionText is what there is to say of an execution beyond its state.
func executionText(x *approvallog.Execution) string {
	switch {
	case x == nil:
		return ""
	case x.ExitCode != nil:
		return fmt.Sprintf(", exit %d", *x.ExitCode)
	case x.Lost:
		return ": its runner is gone, how it ended is not known"
	case x.EndedAt.IsZero() && x.Runner.PID != 0:
		if verdict, _ := (procid.Prober{}).Judge(x.Runner); verdict.Dead() {
			return fmt.Sprintf(": its runner (pid %d) is gone, how it ended is not known", x.Runner.PID)
		}
		return fmt.Sprintf(" (pid %d)", x.Runner.PID)
	}
	return ""
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// quoteArgv writes a command so that it cannot be misread and could be pasted
// into a shell.
func quoteArgv(argv []string) string {
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = quoteArg(a)
	}
	return strings.Join(quoted, " ")
}

// plainArg are the characters that mean themselves to a shell.
const plainArg = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"

func quoteArg(a string) string {
	if a != "" && strings.Trim(a, plainArg) == "" {
		return a
	}
	return "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
}

// count is n of something in words.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
