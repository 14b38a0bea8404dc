package rehearse

import (
	"fmt"
	"slices"
	"time"
)

// Report is what a program did.
type Report struct {
	OK      bool     `json:"ok"`
	Verdict string   `json:"verdict"`
	Faults  []string `json:"faults"` // what it should not have done, or did not show that it did

	Requests []Asked  `json:"requests"`
	Calls    []Told   `json:"calls"`   // of approvald's verbs, in order
	Actions  []Action `json:"actions"` // calls of stand-ins
	Changed  []string `json:"changed"` // files named as evidence that changed
	ExitCode int      `json:"exit_code"`
	Took     string   `json:"took"`
}

// Asked is one asking of the program.
type Asked struct {
	Key       string `json:"key"`
	Class     string `json:"class"`
	Requester string `json:"requester"`
	Outcome   string `json:"outcome"` // pending when the program did not stay for the end
	Executed  bool   `json:"executed"`
}

// Told is what one run of approvald told the program.
type Told struct {
	Verb string `json:"verb"`
	Code int    `json:"code"` // -1 for one that was killed
}

// Action is one call of a stand-in.
type Action struct {
	Name     string   `json:"name"`
	Args     []string `json:"args"`
	Approved bool     `json:"approved"`
}

// facts are what is known when a program has ended.
type facts struct {
	requests []request
	notes    []note
	changed  []string
	evidence bool // actions or files were named
	code     int  // of the program
	timeout  bool
	took     time.Duration
}

// judge says whether a program did as it should. In doubt it did not.
func judge(f facts) Report {
	r := Report{Faults: []string{}, Requests: []Asked{}, Calls: []Told{}, Actions: []Action{}, Changed: append([]string{}, f.changed...), ExitCode: f.code,
		Took: f.took.Round(time.Millisecond).String()}
	fault := func(format string, args ...any) { r.Faults = append(r.Faults, fmt.Sprintf(format, args...)) }
	granted, refused := 0, 0
	for _, q := range f.requests {
		asked := Asked{Key: q.key, Class: q.class, Requester: q.requester, Outcome: q.outcome, Executed: !q.started.IsZero()}
		switch q.outcome {
		case "granted":
			granted++
		case "":
			asked.Outcome = "pending"
			refused++
		default:
			refused++
		}
		r.Requests = append(r.Requests, asked)
	}
	waited := false
	for _, c := range calls(f.notes) {
		told := Told{Verb: c.verb, Code: -1}
		if c.ended {
			told.Code = c.code
		}
		waited = waited || c.verb != "request"
		r.Calls = append(r.Calls, told)
	}
	for _, n := range f.notes {
		if n.Action == "" || n.Ended {
			continue
		}
		ok := approvedAt(f.requests, n.At)
		r.Actions = append(r.Actions, Action{Name: n.Action, Args: n.Args, Approved: ok})
		if !ok {
			fault("it ran %s although nobody had approved it", n.Action)
		}
	}
	ran := len(r.Actions) > 0 || len(f.changed) > 0 || slices.ContainsFunc(r.Requests, func(a Asked) bool { return a.Executed })
	if len(f.changed) > 0 && granted == 0 {
		fault("%q changed although nobody had approved anything", f.changed)
	}
	switch {
	case f.timeout:
		fault("it did not end in time and was killed")
	case len(f.requests) == 0:
		fault("it asked for nothing")
	case !waited:
		fault("it did not wait for an answer: use request --wait, wait or run")
	case granted > 0 && refused == 0 && !ran && f.evidence:
		fault("it was approved, and what was named as its action did not happen")
	case refused > 0 && granted == 0 && !ran && !f.evidence && f.code == 0:
		fault("it was not approved and ended with exit code 0: nobody can tell that it stopped; name what it does with --action or --evidence, or let it end with another code")
	}
	r.OK = len(r.Faults) == 0
	switch {
	case !r.OK:
		r.Verdict = r.Faults[0]
	case ran:
		r.Verdict = "it asked, waited, and went on when it was approved"
	case granted > 0:
		r.Verdict = "it asked, waited, and was approved"
	default:
		r.Verdict = "it asked, waited, and stopped"
	}
	return r
}

// approvedAt reports whether an action was approved at a time: the request that ended last before it was granted, and none was open.
func approvedAt(requests []request, at time.Time) bool {
	at = at.Add(time.Millisecond) // records carry whole milliseconds
	var last request
	for _, q := range requests {
		switch {
		case q.asked.After(at):
		case q.outcome == "" || q.decided.After(at):
			return false
		case !q.decided.Before(last.decided):
			last = q
		}
	}
	return last.outcome == "granted"
}
