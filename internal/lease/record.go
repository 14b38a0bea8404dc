package lease

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/procid"
)

// The modes of a transport.
const (
	ModePoll    = "poll"
	ModeWebhook = "webhook"
)

const (
	timeLayout    = "2006-01-02T15:04:05.000Z07:00"
	recordVersion = 1
	// maxRecord is far more than any record; reading stops there.
	maxRecord = 64 << 10
)

// record is the content of telegram-transport.lock. Other implementations
// ignore Holder and write none.
type record struct {
	Version      int            `json:"version"`
	PID          int            `json:"pid"`
	Mode         string         `json:"mode"`
	StartedAt    string         `json:"started_at"`
	InstanceHome string         `json:"instance_home"`
	Holder       *recordedOwner `json:"holder,omitempty"`
}

// recordedOwner is what makes a holder unmistakable.
type recordedOwner struct {
	BootID     string `json:"boot_id"`
	PIDNS      string `json:"pid_ns"`
	StartTicks uint64 `json:"start_ticks"`
	Nonce      string `json:"nonce"`
	Epoch      int64  `json:"epoch"`
	UID        uint32 `json:"uid"`
	Program    string `json:"program"`
	Version    string `json:"version"`
}

// identity is the holder's process; only for a record with a holder.
func (r record) identity() procid.Identity {
	return procid.Identity{BootID: r.Holder.BootID, PIDNS: r.Holder.PIDNS, PID: r.PID, StartTicks: r.Holder.StartTicks}
}

// sameHolder reports whether both name one take of one process: pid, start and
// nonce, never the pid alone.
func (r record) sameHolder(o record) bool {
	return r.Holder != nil && o.Holder != nil && r.identity() == o.identity() && r.Holder.Nonce == o.Holder.Nonce
}

func (r record) encode() []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic("lease: a record of plain strings and numbers does not marshal: " + err.Error())
	}
	return append(data, '\n')
}

func (r record) public() Holder {
	since, _ := time.Parse(time.RFC3339, r.StartedAt)
	h := Holder{PID: r.PID, Mode: r.Mode, Since: since.UTC(), Foreign: r.Holder == nil}
	if r.Holder != nil {
		h.Epoch, h.UID, h.Program, h.Version = r.Holder.Epoch, &r.Holder.UID, r.Holder.Program, r.Holder.Version
	}
	return h
}

// parseRecord refuses what lacks a member that every implementation writes. A
// record like that is torn: nothing in it may make it look alive.
func parseRecord(data []byte) (record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("lease record: %w", err)
	}
	if r.Version < 1 || r.PID < 1 || r.Mode == "" {
		return record{}, errors.New("lease record: version, pid or mode missing")
	}
	if _, err := time.Parse(time.RFC3339, r.StartedAt); err != nil {
		return record{}, fmt.Errorf("lease record: started_at: %w", err)
	}
	return r, nil
}

// fileID tells a file's present content from an earlier one without reading it.
type fileID struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

// sameFile reports whether both are one inode, whatever its content.
func (a fileID) sameFile(b fileID) bool { return a.dev == b.dev && a.ino == b.ino }

// observed is a record as it was read at one moment.
type observed struct {
	present bool
	torn    bool
	data    []byte
	rec     record
	id      fileID
	// uid owns the file, which is what is known of a foreign holder's user.
	uid uint32
}

// same reports whether both are the very same record in the very same file.
func (o observed) same(p observed) bool {
	return o.present && p.present && o.id.sameFile(p.id) && bytes.Equal(o.data, p.data)
}

// ours reports whether it is readable and names the same take as r.
func (o observed) ours(r record) bool { return o.present && !o.torn && o.rec.sameHolder(r) }

// observe reads the record at path once. A missing one is no error.
func observe(path string) (observed, error) {
	// O_NONBLOCK: a FIFO put there must not hang the start.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return observed{}, nil
	}
	if err != nil {
		return observed{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return observed{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return observed{}, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return observed{}, err
	}
	o := observed{present: true, data: data, id: idOf(&st), uid: st.Uid}
	if o.rec, err = parseRecord(data); err != nil {
		o.torn = true
	}
	return o, nil
}
