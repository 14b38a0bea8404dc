package approvallog

import (
	"errors"
	"fmt"
)

// The package's sentinels. Each means one thing; see also [CorruptError].
var (
	// ErrHeadMoved: the log has grown since the head that an append was computed from. Nothing was
	// written; read on and decide again.
	ErrHeadMoved = errors.New("the log has moved on")
	// ErrPoisoned: a write or fsync of this handle failed earlier, and what the disk holds is no
	// longer known. Nothing more goes through this handle; a new process reads what there is.
	ErrPoisoned = errors.New("the log's handle is poisoned by a failed write")
	// ErrCorrupt: the log is damaged before its end. Always inside a [*CorruptError].
	ErrCorrupt = errors.New("the log is damaged")
	// ErrTorn: the log ends in an unfinished record.
	ErrTorn = errors.New("the log ends in a torn record")
	// ErrLocked: another writer held the append lock for the whole wait. Always inside a
	// [*LockedError], which names it.
	ErrLocked = errors.New("the log is locked by another writer")
	// ErrFenced is for guards: the writer's epoch is over, or its lease is lost.
	ErrFenced = errors.New("the writer is fenced off")
	// ErrInvalid: a draft is no valid record. Nothing was written.
	ErrInvalid = errors.New("invalid record")
	// ErrClosed: the handle was closed.
	ErrClosed = errors.New("the log is closed")
)

// Reason says in one stable word what is wrong with a log. The words are those of the format,
// which another implementation's verifier prints too, and approvald's own.
type Reason string

// Reasons that one line gives, in the order in which they are looked for.
const (
	ReasonMalformed     Reason = "malformed-line"
	ReasonDuplicateKey  Reason = "duplicate-key"
	ReasonNotCanonical  Reason = "not-canonical"
	ReasonBadAlg        Reason = "bad-alg"
	ReasonSchema        Reason = "schema-invalid"
	ReasonHashMismatch  Reason = "hash-mismatch"
	ReasonSeqDuplicate  Reason = "seq-duplicate"
	ReasonSeqGap        Reason = "seq-gap"
	ReasonNotGenesis    Reason = "not-genesis"
	ReasonPrevMismatch  Reason = "prev-mismatch"
	ReasonHeadMismatch  Reason = "head-mismatch"
	ReasonTornTail      Reason = "torn-tail"
	ReasonLogMissing    Reason = "log-missing"
	ReasonLogReplaced   Reason = "log-replaced"
	ReasonLogTruncated  Reason = "log-truncated"
	ReasonLogRewritten  Reason = "log-rewritten"
	ReasonNotRegular    Reason = "not-a-regular-file"
	ReasonForeignWriter Reason = "unlocked-writer"
	ReasonUnfollowed    Reason = "cannot-be-followed" // whole and chained, but not what could come there

	// Of the archive: a segment is not there, holds something else than its seal says, has a seal
	// that cannot be read, or follows another one than the one before it.
	ReasonArchiveMissing Reason = "archive-missing"
	ReasonArchiveAltered Reason = "archive-altered"
	ReasonArchiveSeal    Reason = "archive-seal-invalid"
	ReasonArchiveLink    Reason = "archive-link-mismatch"
)

// CorruptError says where a log is damaged and how. It is [ErrCorrupt].
type CorruptError struct {
	Path   string
	Reason Reason
	Line   int64  // from 1; 0 when the damage is not in a line
	Offset int64  // of the line's first byte in the file
	Seq    int64  // the sequence number that the line has or should have; 0 when unknown
	Detail string // for people, without the record's own text
}

func (e *CorruptError) Error() string {
	where := ""
	if e.Line > 0 {
		where = fmt.Sprintf(", line %d (byte %d, seq %d)", e.Line, e.Offset, e.Seq)
	}
	return fmt.Sprintf("log %s is damaged%s: %s: %s", e.Path, where, e.Reason, e.Detail)
}

// Is makes the error [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// LockedError names the append lock's file and who holds it. It is [ErrLocked].
type LockedError struct {
	Path   string
	Holder string // the holder in words, and why its lock was not taken over
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("append lock %s is held by %s", e.Path, e.Holder)
}

// Is makes the error [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }
