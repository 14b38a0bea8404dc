package rehearse

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// The scripted approvers.
const (
	Approve       = "approve"        // taps Approve, as many people as it takes
	Reject        = "reject"         // taps Reject
	Silent        = "silent"         // does not look: the request expires
	Late          = "late"           // taps Approve after the request has expired
	KilledMidway  = "killed-midway"  // the daemon is killed with the request on the phone, comes back, and Approve is tapped
	Deaf          = "deaf"           // the gate has no network: nobody is ever shown the request
	rehearsalTTL  = "10m"            // of requests that somebody will answer
	maxScenario   = 1 << 20          // bytes
	maxAnswerWait = 10 * time.Minute // before an answer
)

// Approvers lists the names of the scripted approvers.
func Approvers() []string { return []string{Approve, Reject, Silent, Late, KilledMidway, Deaf} }

// Scenario says how requests are answered; the first answer that fits a request counts.
type Scenario struct {
	Answers []Answer `toml:"answers"`
}

// Answer is what happens to the requests that it fits.
type Answer struct {
	Class string   `toml:"class"` // a pattern with *, as in the configuration's rules; empty for any
	Key   string   `toml:"key"`   // the same for the action key
	Do    string   `toml:"do"`    // one of Approvers
	After duration `toml:"after"` // how long the person takes
}

type duration time.Duration

// UnmarshalText reads a duration as Go writes it.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && (v < 0 || v > maxAnswerWait) {
		err = fmt.Errorf("%s is not between 0 and %s", text, maxAnswerWait)
	}
	*d = duration(v)
	return err
}

// ByOne is the scenario in which every request is answered in one way.
func ByOne(approver string) (Scenario, error) {
	s := Scenario{Answers: []Answer{{Do: approver}}}
	return s, s.check("--approver")
}

// ReadScenario reads a scenario file. Every fault names the file and the answer.
func ReadScenario(name string) (Scenario, error) {
	var s Scenario
	info, err := os.Stat(name)
	if err == nil && info.Size() > maxScenario {
		return s, fmt.Errorf("%s: a scenario has at most %d bytes", name, maxScenario)
	}
	meta, err := toml.DecodeFile(name, &s)
	if err != nil {
		return s, fmt.Errorf("read the scenario %s: %w", name, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return s, fmt.Errorf("%s: %s is no key of a scenario; an answer has class, key, do and after", name, unknown[0])
	}
	if len(s.Answers) == 0 {
		return s, fmt.Errorf("%s: there is no [[answers]] in it", name)
	}
	return s, s.check(name)
}

func (s Scenario) check(where string) error {
	for i, a := range s.Answers {
		if !slices.Contains(Approvers(), a.Do) {
			return fmt.Errorf("%s: answer %d: %q is no approver; there are %s", where, i+1, a.Do, strings.Join(Approvers(), ", "))
		}
		for _, pattern := range []string{a.Class, a.Key} {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("%s: answer %d: the pattern %q: %w", where, i+1, pattern, err)
			}
		}
		if a.Do == Deaf && (len(s.Answers) > 1 || a.Class != "" || a.Key != "") {
			return fmt.Errorf("%s: answer %d: deaf is the whole gate and stands alone", where, i+1)
		}
	}
	return nil
}

// answer is how a request is answered; nobody looks at one that no answer fits.
func (s Scenario) answer(class, key string) Answer {
	for _, a := range s.Answers {
		if fits(a.Class, class) && fits(a.Key, key) {
			return a
		}
	}
	return Answer{Do: Silent}
}

// fits matches a pattern in which * stands for any characters, dots and slashes too.
func fits(pattern, text string) bool {
	if pattern == "" {
		return true
	}
	hide := strings.NewReplacer("/", "\x00")
	ok, _ := path.Match(hide.Replace(pattern), hide.Replace(text)) // checked before
	return ok
}

// expires reports whether some request may end by its deadline.
func (s Scenario) expires() bool {
	for _, a := range s.Answers {
		switch {
		case a.Do == Silent || a.Do == Late || a.Do == Deaf:
			return true
		case a.Class == "" && a.Key == "":
			return false // it fits whatever comes after it too
		}
	}
	return true // one that no answer fits
}
