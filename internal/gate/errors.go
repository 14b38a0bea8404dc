package gate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
)

// Codes of [Error]. They are a stable interface: programs read them in the JSON output.
const (
	CodeConfig          = "config"           // the configuration, or a file that it names, is at fault
	CodeInvalidRequest  = "invalid-request"  // key, class, summary, payload or limits are not acceptable
	CodeNotFound        = "not-found"        // no request has this key
	CodeNotYet          = "not-yet"          // the key is that of a follow-up that is still to be asked for
	CodeRequestConflict = "request-conflict" // the key is taken by a different request
	CodeBusy            = "busy"             // a pending request holds the exclusive key
	CodeQueueFull       = "queue-full"       // as many requests are pending as the gate allows
	CodeRateLimited     = "rate-limited"     // the requester opened too many requests in the last hour
	CodeWrongIdentity   = "wrong-identity"   // somebody else's request
	CodeNotAllowed      = "not-allowed"      // this person may not decide this class
	CodeAlreadyDecided  = "already-decided"  // the request has ended; nothing was changed
	CodeNotGranted      = "not-granted"      // there is no grant to use
	CodeAlreadyStarted  = "already-started"  // the grant has been used
	CodePayloadMismatch = "payload-mismatch" // the bytes about to be used are not those that were bound
	CodePayloadDamaged  = "payload-damaged"  // the bytes kept for the request are missing or changed
	CodeLogCorrupt      = "log-corrupt"      // the log is damaged: the gate is read-only
	CodeLogTorn         = "log-torn"         // the log ends in a torn record
	CodePending         = "pending"          // a request is still pending
	CodeAppendLocked    = "append-locked"    // another process holds the append lock
	CodeFenced          = "fenced"           // this process is no longer the one that may write
	CodeInternal        = "internal"         // the machine failed: no space, no permission, a bug
)

// Error is a refusal or failure as a person and a program are told it.
type Error struct {
	Code    string // one of the codes above
	Message string // what happened, to which key or path
	Hint    string // what to do next, may be empty
	Err     error  // the cause, may be nil; its text is part of Message already where it helps
}

// Error returns the message without the hint.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is match any error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// ErrorCode returns the code of the [Error] in err's chain, [CodeInternal] for any other error
// and "" for nil.
func ErrorCode(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

func refuse(code, hint, format string, args ...any) *Error {
	return &Error{Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// internalError wraps a failure of the machine under what was being done.
func internalError(err error, format string, args ...any) *Error {
	return &Error{Code: CodeInternal, Message: fmt.Sprintf(format, args...) + ": " + err.Error(), Hint: MachineHint(err), Err: err}
}

// MachineHint says what to do about a failure of the machine; "" when err is none.
func MachineHint(err error) string {
	errno, failed := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free some space, then try again: nothing was recorded"
	case errors.Is(err, syscall.EROFS):
		return "the file system is mounted read-only; mount it writable again, then try again"
	case errors.Is(err, fs.ErrPermission):
		return "run as the user that the gate belongs to, or go through the daemon's socket (approvald up)"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "allow more open files (ulimit -n, LimitNOFILE= in a unit), then try again"
	case errors.Is(err, syscall.EFBIG):
		return "allow larger files (ulimit -f), then try again: nothing was recorded"
	case errors.Is(err, syscall.EIO), errors.Is(err, io.ErrShortWrite):
		return "look after the disk (dmesg tells of its errors), then try again"
	case failed && errno != syscall.ENOENT:
		return "look after the file system that the named file is on, then try again"
	default:
		return ""
	}
}

// Fault is one thing that is wrong with a configuration file.
type Fault struct {
	File   string
	Line   int    // from 1; 0 when the fault is the file's as a whole
	Key    string // dotted, with the index of a table in an array: approvers[1].id
	What   string
	Remedy string
}

// String writes FILE:LINE: key: what is wrong; what to do.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	b.WriteString(": ")
	if f.Key != "" {
		b.WriteString(f.Key + ": ")
	}
	b.WriteString(f.What)
	if f.Remedy != "" {
		b.WriteString("; " + f.Remedy)
	}
	return b.String()
}

// ConfigError holds all faults of one configuration file, in the order of their lines.
type ConfigError struct {
	Faults []Fault
}

// Error writes one fault a line.
func (e *ConfigError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}
