package approvallog

import (
	"time"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/procid"
)

// Folder keeps a state that follows from the records.
type Folder interface {
	// Apply is given every record exactly once and in order. An error means that the folder cannot
	// follow this log, and ends the use of the handle.
	Apply(Record) error
}

// Options say which log to open and with what.
type Options struct {
	// Path of the log's file.
	Path string
	// Fold is fed with every record; nil when only the chain matters.
	Fold Folder
	// Guard is asked inside the append lock, before anything is decided. Its error refuses the
	// append and is returned as it is. Nil allows.
	Guard func() error
	// ReadDamaged opens a damaged log for reading up to the damage, which [Log.Damage] then tells.
	// Appends stay refused.
	ReadDamaged bool
	// Now is the clock for time stamps; nil is time.Now.
	Now func() time.Time
	// LockWait is how long to wait for the append lock; 0 is 2 seconds.
	LockWait time.Duration
	// FS carries the hook of tests.
	FS durable.FS
	// Prober judges the holder of a leftover lock; the zero value asks the real /proc.
	Prober procid.Prober
	// Program is what the lock record says of its maker; empty is "approvald".
	Program string
	// Logf reports what a person should know although it fails nothing: a quarantined tail, a lock
	// taken over. Nil drops it.
	Logf func(format string, args ...any)
}
