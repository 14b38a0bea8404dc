package gate

import (
	"os"
	"path/filepath"
	"slices"
)

// Paths are the files of one gate. All but the sockets lie under the gate home.
type Paths struct {
	Home       string
	Log        string // the approval log
	Quarantine string // directory of torn bytes taken off the log's end
	Archive    string // directory of sealed segments of the log
	Payloads   string // directory of the bytes that requests bind, by their SHA-256
	Daemon     string // directory of the daemon's own files
	Journal    string // the delivery journal
	Snapshot   string // the disposable fold of the log
	// JournalSnapshot is that of the delivery journal, in a directory of its own with its index files.
	JournalSnapshot string
	Socket          string // where the daemon listens for agents
	// Sockets are the places where a client looks for a daemon, in order: one that runs as a
	// service listens elsewhere than one that was started from a login session.
	Sockets []string
}

// Paths answers where the files of the gate are. The socket is $RUNTIME_DIRECTORY/approvald.sock,
// else $XDG_RUNTIME_DIR/approvald/GATE.sock, else run/approvald.sock under the gate home.
func (c Config) Paths() Paths {
	daemon := filepath.Join(c.Home, "daemon")
	p := Paths{
		Home:       c.Home,
		Log:        filepath.Join(c.Home, "log", "events.jsonl"),
		Quarantine: filepath.Join(c.Home, "log", "quarantine"),
		Archive:    filepath.Join(c.Home, "log", "archive"),
		Payloads:   filepath.Join(c.Home, "payloads"),
		Daemon:     daemon,
		Journal:    filepath.Join(daemon, "deliveries.jsonl"),
		Snapshot:   filepath.Join(daemon, "snapshot.json"),

		JournalSnapshot: filepath.Join(daemon, "journal", "snapshot.json"),
	}
	if dir := Rehearsal(); dir != "" {
		p.Socket = filepath.Join(dir, "run", "approvald", "default.sock")
		p.Sockets = []string{p.Socket}
		return p
	}
	if dir := os.Getenv("RUNTIME_DIRECTORY"); filepath.IsAbs(dir) {
		p.Sockets = append(p.Sockets, filepath.Join(dir, "approvald.sock"))
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		p.Sockets = append(p.Sockets, filepath.Join(dir, "approvald", c.Gate+".sock"))
	}
	if c.Home != "" {
		p.Sockets = append(p.Sockets, filepath.Join(c.Home, "run", "approvald.sock"))
	}
	// The unit's RuntimeDirectory= makes this one.
	if unit := filepath.Join("/run/approvald", c.Gate, "approvald.sock"); !slices.Contains(p.Sockets, unit) {
		p.Sockets = append(p.Sockets, unit)
	}
	p.Socket = p.Sockets[0]
	return p
}
