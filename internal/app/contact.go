package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/gate"
)

// contactFile says by its modification time when updates could last be received. It is a note and no state: losing it means that
// one absence may go untold, and a wrong one can at most tell of an absence that was none.
func (a *App) contactFile() string { return contactFile(a.opts.Config.Paths()) }

func contactFile(p gate.Paths) string { return filepath.Join(p.Daemon, "contact") }

// LastContact is when a daemon of this gate could last receive updates, zero when that is not known. It is noted every ten seconds.
func LastContact(p gate.Paths) time.Time {
	info, err := os.Stat(contactFile(p))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// lastContact is when an earlier daemon could last receive updates, zero when that is not known.
func (a *App) lastContact() time.Time {
	info, err := os.Stat(a.contactFile())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return time.Time{}
	case err != nil:
		a.tellf("when Telegram was last heard cannot be read: %v", err)
		return time.Time{}
	case info.ModTime().After(a.opts.Now()):
		return time.Time{} // the clock was set back meanwhile
	default:
		return info.ModTime()
	}
}

// noteContact keeps when updates could last be received, for the daemon after this one.
func (a *App) noteContact(at time.Time) {
	err := os.Chtimes(a.contactFile(), time.Time{}, at)
	if errors.Is(err, fs.ErrNotExist) {
		var f *os.File
		if f, err = durable.Open(a.contactFile(), os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
			err = f.Close()
		}
		if err == nil {
			err = os.Chtimes(a.contactFile(), time.Time{}, at)
		}
	}
	if err != nil && !a.contactLost.Swap(true) {
		a.log.Warn("when Telegram was last heard cannot be noted: taps that are lost over a restart may go untold: " + err.Error())
	}
}
