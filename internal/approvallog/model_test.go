package approvallog

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/approvald/approvald/internal/durable"
)

// FuzzLine feeds any bytes to the line parser: what it accepts must be exactly what the encoder
// makes of the record.
func FuzzLine(f *testing.F) {
	for _, line := range makeLog(f, logPath(f), 2) {
		f.Add(bytes.TrimSuffix(line, []byte("\n")))
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"seq":1}`))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var c lineChecker
		if fault := c.check(raw); fault != nil {
			if fault.reason == "" || fault.detail == "" {
				t.Fatalf("%q refused without a reason", raw)
			}
			return
		}
		r := c.record(raw, 0)
		d := Draft{Event: r.Event, Actor: r.Actor, Task: r.Task, ActionKey: r.ActionKey, Channel: r.Channel}
		if r.Payload != nil {
			d.Payload = r.Payload
		}
		again, err := encode(Head{Seq: r.Seq - 1, Hash: r.Prev}, r.TS, d)
		if err != nil {
			t.Fatalf("%q accepted, but cannot be made: %v", raw, err)
		}
		if len(c.line.ts.text) == len(TimeLayout) && !bytes.Equal(again.Raw, raw) {
			t.Fatalf("%q accepted, made again as %q", raw, again.Raw)
		}
	})
}

// The log against the simplest model of one, a list of keys: under appends through two handles,
// appends that the disk refuses, tears, restarts, and looks from everywhere.
func TestLogAgainstAModel(t *testing.T) {
	fewerChecks(t)
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "run")
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{path: filepath.Join(dir, "log", "events.jsonl")}
		m.reopen(t, 0)
		m.reopen(t, 1)
		defer func() {
			m.logs[0].Close()
			m.logs[1].Close()
		}()
		t.Repeat(map[string]func(*rapid.T){
			"append":  m.append,
			"stale":   m.stale,
			"full":    m.full,
			"poison":  m.poison,
			"tear":    m.tear,
			"restart": func(t *rapid.T) { m.reopen(t, rapid.IntRange(0, 1).Draw(t, "handle")) },
			"":        m.check,
		})
	})
}

// fewerChecks lowers rapid's number of histories, unless one was asked for: each step here costs
// several fsyncs.
func fewerChecks(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	if checks.Value.String() != checks.DefValue {
		return
	}
	if err := checks.Value.Set("15"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checks.Value.Set(checks.DefValue) })
}

type machine struct {
	path  string
	keys  []string
	logs  [2]*Log
	folds [2]*recorder
	fault error
	op    string
	torn  bool
}

func (m *machine) hook(op, _ string) error {
	if op == m.op {
		return m.fault
	}
	return nil
}

func (m *machine) reopen(t *rapid.T, i int) {
	if m.logs[i] != nil {
		m.logs[i].Close()
	}
	m.folds[i] = &recorder{}
	var err error
	m.logs[i], err = Open(Options{Path: m.path, Fold: m.folds[i], FS: durable.FS{Hook: m.hook}})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
}

// add tries to append some records through one of the handles.
func (m *machine) add(t *rapid.T) (handle int, keys []string, err error) {
	handle = rapid.IntRange(0, 1).Draw(t, "handle")
	keys = rapid.SliceOfN(rapid.StringN(1, 20, -1), 1, 3).Draw(t, "keys")
	_, err = m.logs[handle].Update(context.Background(), func(tx *Tx) error {
		if tx.Head().Seq != int64(len(m.keys)) {
			t.Fatalf("decided from head %v, the model has %d records", tx.Head(), len(m.keys))
		}
		for _, key := range keys {
			if _, err := tx.Append(draft(key)); err != nil {
				return err
			}
		}
		return nil
	})
	return handle, keys, err
}

func (m *machine) append(t *rapid.T) {
	_, keys, err := m.add(t)
	if err != nil {
		t.Fatal(err)
	}
	m.keys, m.torn = append(m.keys, keys...), false
}

func (m *machine) stale(t *rapid.T) {
	head := Head{Seq: int64(len(m.keys)) + 1, Hash: "x"}
	if _, err := m.logs[0].Append(context.Background(), head, draft("k")); !errors.Is(err, ErrHeadMoved) {
		t.Fatalf("a head that is not there: %v", err)
	}
}

func (m *machine) full(t *rapid.T) {
	m.op, m.fault = "append.write", &durable.Partial{N: rapid.IntRange(0, 900).Draw(t, "bytes"), Err: syscall.ENOSPC}
	defer func() { m.op = "" }()
	if _, _, err := m.add(t); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrPoisoned) {
		t.Fatalf("full disk: %v", err)
	}
	m.torn = false
}

// poison fails a write: the handle is of no more use, and what it left behind is a tear.
func (m *machine) poison(t *rapid.T) {
	m.op, m.fault = "append.write", &durable.Partial{N: rapid.IntRange(0, 30).Draw(t, "bytes"), Err: syscall.EIO}
	handle, _, err := m.add(t)
	m.op = ""
	if !errors.Is(err, ErrPoisoned) {
		t.Fatalf("failed write: %v", err)
	}
	if err := m.logs[handle].Refresh(context.Background()); !errors.Is(err, ErrPoisoned) {
		t.Fatalf("a poisoned handle reads on: %v", err)
	}
	m.reopen(t, handle)
	m.torn = true
}

// tear is what a killed writer leaves behind.
func (m *machine) tear(t *rapid.T) {
	bytes := rapid.SliceOfN(rapid.Byte().Filter(func(b byte) bool { return b != '\n' }), 1, 40).Draw(t, "torn")
	if m.logs[0].Head().Seq == 0 || m.torn {
		t.Skip("nothing to tear at")
	}
	f, err := os.OpenFile(m.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes); err != nil {
		t.Fatal(err)
	}
	m.torn = true
}

func (m *machine) check(t *rapid.T) {
	for i, l := range m.logs {
		if err := l.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		if len(m.folds[i].records) != len(m.keys) {
			t.Fatalf("handle %d has %d records, the model %d", i, len(m.folds[i].records), len(m.keys))
		}
		for n, r := range m.folds[i].records {
			if r.ActionKey != m.keys[n] {
				t.Fatalf("record %d has key %q, want %q", n+1, r.ActionKey, m.keys[n])
			}
		}
	}
	if len(m.keys) == 0 {
		return
	}
	report, err := Verify(context.Background(), m.path, VerifyOptions{})
	if err != nil || report.Status == StatusCorrupt || report.Records != int64(len(m.keys)) || report.Status == StatusTorn && !m.torn {
		t.Fatalf("%+v, %v", report, err)
	}
}
