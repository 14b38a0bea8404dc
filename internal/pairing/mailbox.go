package pairing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/transport"
)

// slip is the file by which a terminal asks the gate's running daemon to listen, and by which the daemon answers. It lies in the daemon's
// own directory: who can write there needs no pairing, and agents reach the socket alone.
type slip struct {
	Offer
	Claim *Claim `json:"claim,omitempty"`
	// Why is what ended the offer without a claim.
	Why string `json:"why,omitempty"`
}

const (
	slipName = "pairing.json"
	// maxSlip is more than one ever has.
	maxSlip = 64 << 10
	// lookEvery is how often a terminal looks for the daemon's answer.
	lookEvery = 100 * time.Millisecond
)

func slipPath(daemonDir string) string { return filepath.Join(daemonDir, slipName) }

func readSlip(path string) (slip, error) {
	var s slip
	// Who owns the directory must not have root follow a link or wait for a pipe.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return s, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSlip))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// writeSlip puts a slip in place, whole, for the owner of its directory: root at a terminal writes for the daemon's user.
func writeSlip(path string, s slip) (err error) {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode offer: %w", err)
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	temp := durable.TempName(path)
	f, err := durable.Open(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			os.Remove(temp)
		}
	}()
	if owner, ok := dir.Sys().(*syscall.Stat_t); ok && os.Geteuid() != 0 && int(owner.Uid) != os.Geteuid() {
		// The daemon could not read it. What root makes there is the owner's already.
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if _, err := f.Write(append(data, '\n')); err != nil {
		return err
	}
	// A slip that a crash takes away costs a new code, so it is not synced.
	return os.Rename(temp, path)
}

// Ask has the gate's running daemon listen, and waits until somebody presents the offer's code. daemonDir is the daemon's directory.
// opened is called once the code can be presented. The rest is as with [Listener.Await]. An offer of another terminal is replaced, which ends that one's wait. In the end the
// file is gone.
func Ask(ctx context.Context, daemonDir string, o *Offer, now func() time.Time, opened func(), told func(string)) (_ Claim, err error) {
	path := slipPath(daemonDir)
	if err := writeSlip(path, slip{Offer: *o}); err != nil {
		return Claim{}, fmt.Errorf("ask the daemon to listen: %w", err)
	}
	ours := true
	defer func() {
		if !ours {
			return
		}
		if removed := os.Remove(path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}()
	opened()
	for {
		s, err := readSlip(path)
		if err != nil {
			return Claim{}, fmt.Errorf("the offer was taken away: %w", err)
		}
		if s.SHA256 != o.SHA256 {
			ours = false
			return Claim{}, fmt.Errorf("%s: another terminal has put its own offer there", path)
		}
		if s.Wrong > o.Wrong {
			told(fmt.Sprintf("a wrong code was presented (%d of %d)", s.Wrong, MaxWrong))
		}
		*o = s.Offer
		switch {
		case s.Claim != nil:
			return *s.Claim, nil
		case s.Why != "":
			return Claim{}, &EndedError{s.Why}
		case !now().Before(o.Expires):
			return Claim{}, ErrExpired
		}
		if err := pause(ctx, lookEvery); err != nil {
			return Claim{}, err
		}
	}
}

// Desk is the daemon's side: it judges presentations for the terminal that asked for it.
type Desk struct {
	path     string
	bot      string
	telegram Teller
	now      func() time.Time
	log      func(string)
	later    func(func(context.Context))

	mu       sync.Mutex // a webhook hands updates over side by side
	deferred int
}

// DeskOptions say what a Desk works with; all are needed.
type DeskOptions struct {
	DaemonDir string // the daemon's directory
	Bot       string // the bot's user name
	Telegram  Teller
	Now       func() time.Time
	Log       func(string)                // what an operator should find in the daemon's log
	Later     func(func(context.Context)) // runs beside the updates what asks Telegram
}

// NewDesk answers the daemon's side of the mailbox.
func NewDesk(o DeskOptions) *Desk {
	return &Desk{path: slipPath(o.DaemonDir), bot: o.Bot, telegram: o.Telegram, now: o.Now, log: o.Log, later: o.Later}
}

// Hear looks at an update before anybody else does. It is free of cost for one that presents no code, costs the look for a file for one that
// does, and never fails: a presentation that cannot be noted can be made again. It reports whether the update was about the offer of a
// terminal, and so is nobody else's.
func (d *Desk) Hear(u transport.Update) bool {
	if Presented(u.Message, d.bot) == "" {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := readSlip(d.path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.log("an offer to pair cannot be read: " + err.Error())
		}
		return false
	}
	h := s.Hear(u.Message, d.bot, d.now())
	switch h.Verdict {
	case Dead:
		return false
	case TooSoon:
		d.defers(u, s.Next)
		return true
	default:
	}
	// Used up on disk first: a daemon that dies over the rest must not take the code a second time.
	if err := writeSlip(d.path, s); err != nil {
		d.log("a presented code cannot be noted: " + err.Error())
		return true
	}
	if h.Verdict == Wrong && s.Ended == "" {
		d.log(fmt.Sprintf("a wrong code to pair was presented (%d of %d)", s.Wrong, MaxWrong))
		return true
	}
	d.later(func(ctx context.Context) { d.answer(ctx, u.Message, h, s) })
	return true
}

// maxDeferred is how many presentations wait until codes are looked at again; more are dropped, and can be made again.
const maxDeferred = 8

// defers has a presentation looked at when its time has come, beside the updates.
func (d *Desk) defers(u transport.Update, until time.Time) {
	if d.deferred >= maxDeferred {
		return
	}
	d.deferred++
	d.later(func(ctx context.Context) {
		err := pause(ctx, until.Sub(d.now()))
		d.mu.Lock()
		d.deferred--
		d.mu.Unlock()
		if err == nil {
			d.Hear(u)
		}
	})
}

// answer tells the terminal, and who presented the code, what came of it.
func (d *Desk) answer(ctx context.Context, m *transport.Message, h Heard, s slip) {
	claim, _, err := Judge(ctx, d.telegram, m, h, &s.Offer, d.log)
	if err != nil {
		s.Why = err.Error()
		d.log(s.Why)
	} else {
		s.Claim = &claim
		d.log(fmt.Sprintf("user %d presented the code to pair, in chat %d; the terminal that showed it is told", claim.UserID, claim.ChatID))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if there, err := readSlip(d.path); err != nil || there.SHA256 != s.SHA256 {
		return // the terminal has gone, or offers another code by now
	}
	if err := writeSlip(d.path, s); err != nil {
		d.log("what became of a presented code cannot be told to the terminal: " + err.Error())
	}
}
