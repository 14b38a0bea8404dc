package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
)

// maxFollowUpFile bounds the file that describes follow-ups, in bytes. Payloads are in files of their own.
const maxFollowUpFile = 1 << 20

// ReadFollowUp reads the file that describes what to ask for next: TOML with the names of the flags of `approvald request`. Payloads that it
// names are read now, from paths relative to the file's directory. All faults come in one error, an [*Error] of [CodeInvalidRequest] whose
// cause is a [*ConfigError].
func ReadFollowUp(path string) (*FollowUp, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{Code: CodeInvalidRequest, Err: err, Message: "follow-up: " + err.Error(), Hint: "name the TOML file that describes the next request"}
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, maxFollowUpFile+1))
	if err != nil {
		return nil, &Error{Code: CodeInvalidRequest, Err: err, Message: "follow-up: " + err.Error()}
	}
	if len(doc) > maxFollowUpFile {
		return nil, refuse(CodeInvalidRequest, "name the payload in it as a file of its own", "%s: is larger than 1 MiB", path)
	}
	follow, err := parseFollowUp(path, filepath.Dir(path), doc)
	if err != nil {
		return nil, &Error{Code: CodeInvalidRequest, Message: err.Error(), Err: err}
	}
	return follow, nil
}

// parseFollowUp checks the document as a whole; its error is a *ConfigError.
func parseFollowUp(file, dir string, doc []byte) (*FollowUp, error) {
	f := &faults{file: file}
	values := make(map[string]any)
	if _, err := toml.Decode(string(doc), &values); err != nil {
		f.list = append(f.list, syntaxFault(file, err))
		return nil, f.err()
	}
	f.lines = keyLines(string(doc))
	follow := readFollowUp((&node{faults: f}).child("", values), dir, 1)
	if err := f.err(); err != nil {
		return nil, err
	}
	return follow, nil
}

func readFollowUp(n *node, dir string, depth int) *FollowUp {
	f := &FollowUp{
		TTL:        n.duration("ttl", 0, MinTTL, MaxTTL),
		Quorum:     n.integer("quorum", 0, 1, 100),
		Reversible: !n.boolean("irreversible"),
	}
	f.Class = n.checked("class", `a class in quotes, such as "deploy.verify"`, true, CheckClass)
	f.Summary = n.checked("summary", "one line of text in quotes", true, CheckSummary)
	f.Task = n.checked("task", "a task in quotes", false, func(s string) error { return checkKey("task", s) })
	f.Exclusive = n.checked("exclusive", "a key in quotes", false, func(s string) error { return checkKey("exclusive key", s) })
	f.OnBehalfOf = n.checked("on-behalf-of", `"human:NAME"`, false, checkOnBehalfOf)
	n.readBound(f, dir)
	switch {
	case !n.has("then"):
		n.taken["then"] = true
	case depth == MaxFollowUps:
		n.take("then")
		n.fault("then", "ask for the rest once these are done", "at most %d requests may follow one another", MaxFollowUps)
	default:
		f.Then = readFollowUp(n.table("then"), dir, depth+1)
	}
	n.rest()
	return f
}

// checked answers a string that check takes.
func (n *node) checked(name, want string, needed bool, check func(string) error) string {
	s, ok := n.str(name, want)
	if !ok {
		if needed && !n.has(name) {
			n.fault(name, "write "+name+" = "+want, "is missing")
		}
		return ""
	}
	if err := check(s); err != nil {
		remedy := ""
		if e, ok := errors.AsType[*Error](err); ok {
			remedy = e.Hint
		}
		n.fault(name, remedy, "%s", err)
	}
	return s
}

// readBound takes what the request binds: the bytes of a file, or a command as `approvald run` binds it.
func (n *node) readBound(f *FollowUp, dir string) {
	path, isFile := n.str("payload", "the path of a file in quotes")
	argv, isCommand := n.strings("command", `the command and its arguments, ["./verify", "--all"]`)
	cwd, hasCwd := n.str("cwd", "an absolute path in quotes")
	var err error
	switch {
	case isFile && n.has("command"):
		n.fault("command", "write either", "a payload is bound already")
	case isFile:
		var name string
		var data []byte
		if name, data, err = readPayloadFile(path, dir); err == nil {
			f.Payload, f.File, err = BindPayload(name, data)
		}
		if err != nil {
			n.fault("payload", "", "%s", err)
		}
	case isCommand && len(argv) == 0:
		n.fault("command", `write ["COMMAND", "ARGUMENT", …]`, "is empty")
	case isCommand:
		if !hasCwd {
			if cwd, err = os.Getwd(); err != nil {
				n.fault("cwd", "write an absolute path in quotes", "the working directory is not known: %s", err)
			}
		} else if !filepath.IsAbs(cwd) {
			n.fault("cwd", "write the path in full, from / on", "%q is not an absolute path", clip(cwd))
		}
		if f.Payload, err = BindCommand(argv, cwd); err != nil {
			n.fault("command", "", "%s", err)
		}
	}
	if hasCwd && !n.has("command") {
		n.fault("cwd", `write command = ["COMMAND", …] beside it`, "belongs to a command")
	}
}

func readPayloadFile(path, dir string) (name string, data []byte, err error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	data, err = io.ReadAll(io.LimitReader(f, MaxPayload+1))
	if err != nil {
		return "", nil, fmt.Errorf("read %s: %w", path, err)
	}
	return filepath.Base(path), data, nil
}

// BindCommand is the payload of a command with its arguments and its working directory: what a person approves is this text.
func BindCommand(argv []string, cwd string) (canonical []byte, err error) {
	data, err := json.Marshal(struct {
		Kind string   `json:"kind"`
		Argv []string `json:"argv"`
		Cwd  string   `json:"cwd"`
	}{"command", argv, cwd})
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	canonical, _, err = BindPayload("command.json", data)
	return canonical, err
}
