package gate

import (
	"path/filepath"
	"slices"
)

// Identity tells a gate from every other on its machine. Its name alone does not: two configurations may use one name, and
// with it one path for the socket, and be two gates with different approvers.
//
// The zero value but for Name is that of a client that may not read the configuration and knows no more than the name.
type Identity struct {
	Name string `json:"gate"`
	// Homes are the spellings of the gate home: as configured and, where it could be found out, with links resolved.
	Homes []string `json:"homes,omitempty"`
	// Configs are those of the configuration file.
	Configs []string `json:"configs,omitempty"`

	// homeDerived: the configuration names no home, so each process derives it from its own environment.
	homeDerived bool
}

// Identity is that of the gate with this configuration.
func (c Config) Identity() Identity {
	return Identity{Name: c.Gate, Homes: spellings(c.Home), Configs: spellings(c.File), homeDerived: c.homeDerived}
}

// IsServedBy reports whether a daemon that says to be server is the daemon of the gate that i means.
func (i Identity) IsServedBy(server Identity) bool {
	switch {
	case i.Name != server.Name:
		return false
	case len(i.Homes) == 0:
		return true // there is nothing but the name to go by
	case shareAny(i.Homes, server.Homes):
		return true
	default:
		// A service derives its home from STATE_DIRECTORY, and an agent that reads the same file does not have that.
		return i.homeDerived && shareAny(i.Configs, server.Configs)
	}
}

// spellings are path as it is and with links resolved. Who may not look into the directories on the way knows the first alone.
func spellings(path string) []string {
	if path == "" {
		return nil
	}
	list := []string{filepath.Clean(path)}
	if resolved, err := filepath.EvalSymlinks(path); err == nil && resolved != list[0] {
		list = append(list, resolved)
	}
	return list
}

func shareAny(a, b []string) bool {
	return slices.ContainsFunc(a, func(path string) bool { return slices.Contains(b, path) })
}
