package rehearse

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/gate"
)

const (
	witnessFile = "witness.jsonl" // in the rehearsal's directory: a line for each thing that was noted
	actionsDir  = "actions"       // of the stand-ins, first in the program's PATH
)

// note is one line of the witness file.
type note struct {
	At     time.Time `json:"at"`
	PID    int       `json:"pid"`
	Action string    `json:"action,omitempty"` // the name of a stand-in that was called
	Args   []string  `json:"args"`
	Ended  bool      `json:"ended"`
	Code   int       `json:"code"`
}

// Witness notes, in a rehearsal, that this process was started, and returns what notes its exit code. standIn is true in a process that
// was started in the place of a risky action: it has nothing more to do. Outside of a rehearsal it does nothing.
func Witness(argv []string) (ended func(code int), standIn bool) {
	dir := gate.Rehearsal()
	if dir == "" || len(argv) == 0 {
		return func(int) {}, false
	}
	n := note{At: time.Now(), PID: os.Getpid(), Args: argv[1:]}
	name := filepath.Base(argv[0])
	if _, err := os.Lstat(filepath.Join(dir, actionsDir, name)); err == nil {
		n.Action = name
	}
	n.write(dir)
	return func(code int) {
		n.At, n.Ended, n.Code = time.Now(), true, code
		n.write(dir)
	}, n.Action != ""
}

// write appends the note. One that cannot be written is missed by the judgement, which then has less to acquit with.
func (n note) write(dir string) {
	line, err := json.Marshal(n)
	if err != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, witnessFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()             //nolint:errcheck // see above
	f.Write(append(line, '\n')) //nolint:errcheck // see above
}

// readNotes reads what was noted, oldest first.
func readNotes(dir string) ([]note, error) {
	text, err := os.ReadFile(filepath.Join(dir, witnessFile))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var notes []note
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var n note
		if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
			return nil, err
		}
		notes = append(notes, n)
	}
	return notes, lines.Err()
}

// call is one run of approvald by the program.
type call struct {
	verb  string
	code  int
	ended bool
}

// calls are the runs of approvald's verbs that ask or wait.
func calls(notes []note) []call {
	var list []call
	for i, n := range notes {
		if n.Action != "" || n.Ended || len(n.Args) == 0 || !slices.Contains([]string{"request", "wait", "run"}, n.Args[0]) {
			continue
		}
		c := call{verb: n.Args[0]}
		if c.verb == "request" && slices.Contains(n.Args, "--wait") {
			c.verb = "request --wait"
		}
		for _, later := range notes[i+1:] {
			if later.PID == n.PID && later.Ended && later.Action == "" {
				c.ended, c.code = true, later.Code
				break
			}
		}
		list = append(list, c)
	}
	return list
}
