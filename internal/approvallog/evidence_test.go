package approvallog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a home holds beside a log of five requests, each named by its records in the log.
var witnesses = map[string]func(t *testing.T, path string){
	"nothing": func(*testing.T, string) {},
	"lease and empty files": func(t *testing.T, path string) {
		putInHome(t, path, "daemon/telegram-transport.lock", "{}")
		putInHome(t, path, "daemon/deliveries.jsonl", "")
	},
	"a payload":     func(t *testing.T, path string) { putInHome(t, path, "payloads/"+strings.Repeat("a", 64)+".json", "{}") },
	"a first epoch": func(t *testing.T, path string) { journalOfTest(t, path, `{"epoch":1}`) },
	"a delivery":    func(t *testing.T, path string) { journalOfTest(t, path, `{"epoch":1}`, `{"cycle":5,"delivery":"d"}`) },
	"an epoch": func(t *testing.T, path string) {
		journalOfTest(t, path, `{"epoch":1}`, `{"cycle":2,"delivery":"d"}`, `{"epoch":2,"log_seq":5}`, `{"reason":"stranger"}`)
	},
	"a long journal": func(t *testing.T, path string) {
		records := []string{`{"cycle":5,"delivery":"d"}`}
		for range 700 {
			records = append(records, `{"reason":"`+strings.Repeat("r", 100)+`"}`)
		}
		journalOfTest(t, path, records...)
	},
	"a snapshot": func(t *testing.T, path string) {
		l := openTest(t, path, func(o *Options) { o.Snapshot, o.Fold = snapshotOf(path), NewRequests() })
		mustSnapshot(t, l)
		l.Close()
	},
	"another gate's snapshot": func(t *testing.T, path string) {
		other := filepath.Join(t.TempDir(), "log", "events.jsonl")
		l := openTest(t, other, func(o *Options) { o.Snapshot, o.Fold = snapshotOf(path), NewRequests() })
		mustAppend(t, l, "other", "2", "3", "4", "5", "6")
		mustSnapshot(t, l)
		l.Close()
	},
}

// putInHome makes a file in the home of the log at path.
func putInHome(t *testing.T, path, name, text string) {
	t.Helper()
	file := filepath.Join(homeOf(path), name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, []byte(text))
}

func journalOfTest(t *testing.T, path string, payloads ...string) {
	t.Helper()
	l := openTest(t, journalOf(path))
	defer l.Close()
	if _, err := l.Update(t.Context(), func(tx *Tx) error {
		for _, p := range payloads {
			if _, err := tx.Append(Draft{Event: "delivery.intended", Actor: "system:dispatch", Payload: json.RawMessage(p)}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLogThatIsBehindItsHome: a log that was there is never begun anew, whatever else a home holds; and a home in which
// nothing was recorded yet is good, however far its first request came.
func TestLogThatIsBehindItsHome(t *testing.T) {
	type state struct {
		name string
		keep int // whole records
		torn bool
		gone bool
	}
	states := []state{
		{name: "whole", keep: 5}, {name: "one short", keep: 4}, {name: "three short", keep: 2}, {name: "emptied"}, {name: "missing", gone: true},
		{name: "last torn", keep: 4, torn: true}, {name: "torn and short", keep: 2, torn: true},
	}
	// What is damage, beside each witness; "-" is a log that may be gone on with.
	want := map[string]string{
		"nothing":                 "whole - one short - three short - emptied - missing -",
		"lease and empty files":   "whole - one short - three short - emptied - missing -",
		"a payload":               "whole - one short - three short - emptied - missing log-missing",
		"a first epoch":           "whole - one short - three short - emptied - missing log-missing",
		"another gate's snapshot": "whole - one short - three short - emptied log-truncated missing log-missing",
	}
	const known = "whole - one short log-truncated three short log-truncated emptied log-truncated missing log-missing"
	for name, witness := range witnesses {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, s := range states {
				path := logPath(t)
				lines := makeLog(t, path, 5)
				witness(t, path)
				text := bytes.Join(lines[:s.keep], nil)
				if s.torn {
					text = append(text, lines[s.keep][:len(lines[s.keep])/2]...)
				}
				writeFile(t, path, text)
				if s.gone {
					os.Remove(path)
				}
				before := filesIn(t, homeOf(path))
				reason := "-"
				l, err := Open(Options{Path: path})
				if corrupt, ok := errors.AsType[*CorruptError](err); ok {
					reason = string(corrupt.Reason)
				} else if err != nil {
					t.Fatal(err)
				} else {
					l.Close()
				}
				if !s.torn {
					got += " " + s.name + " " + reason
				} else if wantTorn := (want[name] == "" || want[name] == known); (reason != "-") != wantTorn {
					t.Errorf("%s: %s", s.name, reason)
				}
				// What verify says is the same.
				report, verr := VerifyAll(context.Background(), path, journalOf(path), VerifyOptions{})
				if !s.gone && (verr != nil || (report.Status == StatusCorrupt) != (err != nil)) {
					t.Errorf("%s: opened: %v; verified: %+v, %v", s.name, err, report, verr)
				}
				// What is intact can be read.
				if l, err := Open(Options{Path: path, ReadDamaged: true}); err != nil || l.Head().Seq != int64(s.keep) {
					t.Errorf("%s, read: %v", s.name, err)
				} else {
					if _, err := l.Update(t.Context(), func(*Tx) error { return nil }); (err != nil) != (reason != "-") {
						t.Errorf("%s, append: %v", s.name, err)
					}
					l.Close()
				}
				if reason != "-" && filesIn(t, homeOf(path)) != before {
					t.Errorf("%s: files have changed", s.name)
				}
			}
			expected := want[name]
			if expected == "" {
				expected = known
			}
			if got := strings.TrimSpace(got); got != expected {
				t.Errorf("got  %s\nwant %s", got, expected)
			}
		})
	}
}

// filesIn lists the files of a home, with their sizes.
func filesIn(t *testing.T, home string) string {
	t.Helper()
	var list strings.Builder
	err := filepath.WalkDir(home, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			fmt.Fprintln(&list, path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.String()
}

// What was once put into quarantine says nothing of a record that is missing later: it was none. Nor is a record that
// somebody was told of missed when half of it is there.
func TestQuarantineExcusesNoMissingRecord(t *testing.T) {
	path := logPath(t)
	lines := makeLog(t, path, 2)
	writeFile(t, path, append(bytes.Join(lines, nil), `{"act`...))
	l := openTest(t, path)
	mustAppend(t, l, "known")
	l.Close()
	if !hasEntries(filepath.Join(filepath.Dir(path), "quarantine")) {
		t.Fatal("nothing is in quarantine")
	}
	journalOfTest(t, path, `{"cycle":3}`)
	openTest(t, path).Close()
	writeFile(t, path, bytes.Join(lines, nil))
	wantTruncated := func() {
		t.Helper()
		_, err := Open(Options{Path: path})
		if corrupt, ok := errors.AsType[*CorruptError](err); !ok || corrupt.Reason != ReasonLogTruncated {
			t.Errorf("opened: %v", err)
		}
		if r, err := VerifyAll(t.Context(), path, journalOf(path), VerifyOptions{}); err != nil || r.Reason != ReasonLogTruncated {
			t.Errorf("verified: %+v, %v", r, err)
		}
	}
	wantTruncated()
	writeFile(t, path, append(bytes.Join(lines, nil), lines[1][:40]...))
	wantTruncated()
}

func TestCutLogIsNotBehind(t *testing.T) {
	path := logPath(t)
	makeLog(t, path, 3)
	snapshot := func(o *Options) { o.Snapshot, o.Fold = snapshotOf(path), NewRequests() }
	l := openTest(t, path, snapshot)
	mustSnapshot(t, l)
	journalOfTest(t, path, `{"cycle":3,"log_seq":3}`)
	if _, err := l.Cut(t.Context(), Cut{}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	again := openTest(t, path, snapshot)
	mustAppend(t, again, "next")
	mustSnapshot(t, again)
	again.Close()
	writeFile(t, path, nil)
	if _, err := Open(Options{Path: path}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("emptied after the cut: %v", err)
	}
}

// TestHomeThatIsJustBeingMadeIsNotDamaged: who looks while another process makes the log, and what a home has only
// after it, sees an empty gate or the log, never a log that is missing.
func TestHomeThatIsJustBeingMadeIsNotDamaged(t *testing.T) {
	for range 300 {
		path := logPath(t)
		payloads := filepath.Join(filepath.Dir(filepath.Dir(path)), "payloads")
		looking, made := openTest(t, path), make(chan error, 1)
		maker := openTest(t, path)
		go func() {
			err := maker.Ensure(context.Background())
			if err == nil {
				err = os.MkdirAll(payloads, 0o700)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(payloads, "bytes"), []byte("{}"), 0o600)
			}
			made <- err
		}()
		for done := false; !done; {
			select {
			case err := <-made:
				if err != nil {
					t.Fatal(err)
				}
				done = true
			default:
			}
			if err := looking.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
