package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/visible"
)

// env is what every verb has: the terminal, the flags that all verbs share, and
// the way to the gate that they name.
type env struct {
	ui      *ui
	stdin   *os.File
	version string

	gate   string // --gate
	config string // --config
	json   bool   // --json

	faulted bool // tells of a fault in the configuration

	lines *lines // answers at the terminal; see answers

	looksOnly bool // the verb decides and asks nothing: a fault in the configuration does not keep it from a daemon that serves

	damaged bool // what was read is from before damage in the log
}

// interactive reports whether a person sits at stdin.
func (e *env) interactive() bool { return term.IsTerminal(int(e.stdin.Fd())) }

// loadConfig reads the configuration of the gate that the flags name.
func (e *env) loadConfig() (gate.Config, error) {
	path, err := gate.FindConfig(e.gate, e.config)
	if err != nil {
		return gate.Config{}, err
	}
	return gate.LoadConfig(e.gate, path)
}

// ops is the gate as an agent sees it: by its daemon's socket, else by its
// files. done must be called at the end.
//
// With readDamaged the files of a gate whose log is damaged are read up to the
// damage, and the person is told. The verb then ends with exit code 8.
//
// Where the configuration is not readable, as for an agent that is not trusted
// with it, the sockets at the usual places are all that is tried.
func (e *env) ops(readDamaged bool) (ops *gateapi.Failover, done func(), err error) {
	cfg, cfgErr := e.loadConfig()
	clients, err := e.clients(cfg, cfgErr)
	if err != nil {
		return nil, nil, err
	}
	var opened *gate.Gate
	var f *gateapi.Failover
	f = gateapi.NewFailover(gateapi.FailoverOptions{
		Gate:    e.gate,
		Clients: clients,
		Open: func() (gateapi.Ops, error) {
			if e.faulted {
				return nil, cfgErr
			}
			if cfgErr != nil {
				return nil, &gate.Error{Code: gateapi.CodeUnreachable, Message: cfgErr.Error(), Err: cfgErr}
			}
			g, err := gate.Open(cfg, gate.OpenOptions{ReadDamaged: readDamaged, Logf: e.ui.say})
			if err != nil {
				return nil, err
			}
			if damage := g.Damage(); damage != nil {
				e.damaged = true
				e.ui.say("%s", damage)
				e.ui.say("what follows is from before the damage")
			}
			opened = g
			return gateapi.Local(g, func(ctx context.Context) (gateapi.Status, error) { return offlineStatus(ctx, cfg, g, f.Obstacle()) }), nil
		},
		Notice: func(text string) { e.ui.say("%s", text) },
	})
	return f, func() {
		for _, c := range clients {
			c.Close()
		}
		if opened != nil {
			// Everything that was answered for is on disk already.
			_ = opened.Close()
		}
	}, nil
}

// clients are the daemon's possible sockets.
func (e *env) clients(cfg gate.Config, cfgErr error) ([]*gateapi.Client, error) {
	sockets := cfg.Paths().Sockets
	meant := cfg.Identity()
	if cfgErr != nil {
		// A configuration that was named, is at fault, or may be written by others is never passed over.
		// Only what merely looks is shown by the daemon that serves, on what it read before the fault.
		fault := !errors.Is(cfgErr, fs.ErrPermission) && !errors.Is(cfgErr, fs.ErrNotExist)
		if e.config != "" || fault && !e.looksOnly {
			return nil, cfgErr
		}
		meant = gate.Identity{Name: e.gate}
		if sockets = usualSockets(e.gate); len(sockets) == 0 {
			return nil, cfgErr
		}
		if fault {
			if !e.faulted {
				e.ui.say("the configuration is at fault, so only a running daemon is asked: %s", cfgErr)
			}
			e.faulted = true
		}
	}
	var clients []*gateapi.Client
	for _, path := range sockets {
		clients = append(clients, gateapi.NewClient(path, meant))
	}
	return clients, nil
}

// usualSockets are the sockets of a gate whose configuration is not readable.
// Only those are named that are there, so that a missing configuration is
// reported as such.
func usualSockets(gateName string) []string {
	var found []string
	for _, path := range (gate.Config{Gate: gateName}).Paths().Sockets {
		if _, err := os.Lstat(path); err == nil && filepath.IsAbs(path) {
			found = append(found, path)
		}
	}
	return found
}

// requester is the agent that a verb speaks for: --as, else the user's name.
func requester(as string) (string, error) {
	name := strings.TrimPrefix(as, "agent:")
	if as == "" {
		u, err := user.Current()
		if err != nil {
			return "", fmt.Errorf("find the user's name (give --as NAME): %w", err)
		}
		name = u.Username
	}
	if name == "" || strings.HasPrefix(name, "human:") || strings.HasPrefix(name, "system:") {
		return "", usagef("--as NAME, written to the log as agent:NAME", "--as %s is not the name of an agent", visible.Quote(as))
	}
	return "agent:" + name, nil
}

// absolute is path as seen from the working directory.
func absolute(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	return abs, nil
}
