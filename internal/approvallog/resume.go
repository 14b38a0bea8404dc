package approvallog

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// mergeRatio is how many times larger an index on the disk has to be than what follows it to be
	// left alone. So each entry is written again about log4 of their number times.
	mergeRatio = 4
	// staleIndex is the age at which an index that no snapshot names is removed. A younger one may be
	// another process' that has not come to its snapshot yet.
	staleIndex = 10 * time.Minute
	// keepEvery is how many records KeepSnapshot lets the log grow before it writes another snapshot:
	// to read them again takes less than 50 ms.
	keepEvery = 10_000
	// keepAtEnd is the least growth that is worth a snapshot at a stop.
	keepAtEnd = 1_000
	// keepPause is how long KeepSnapshot waits after a failure.
	keepPause = time.Minute
	// keepLast bounds the time for the snapshot at the end.
	keepLast = 2 * time.Second
)

// snapshots is what a Log needs to take snapshots of its fold.
type snapshots struct {
	writing sync.Mutex // held by the one WriteSnapshot that runs
	fold    Indexed    // nil when the fold is none
	finder  *Finder
	seq     int64 // of the last record in the snapshot on the disk; guarded by Log.mu
}

// attach gives an Indexed fold its finder, as new for each segment, and tells it what the archive holds
// of the present.
func (l *Log) attach() {
	fold, ok := l.opts.Fold.(Indexed)
	if !ok {
		return
	}
	if l.snap.finder != nil {
		l.snap.finder.close()
	}
	l.snap.fold, l.snap.seq = fold, 0
	l.snap.finder = &Finder{log: l, fold: fold, mem: &memIndex{}}
	for _, s := range l.segments {
		l.snap.finder.sealed = append(l.snap.finder.sealed, &archived{archivedSegment: s, fold: fold})
	}
	fold.Attach(l.snap.finder)
	if begins, ok := l.opts.Fold.(segmented); ok && len(l.segments) > 0 {
		last := l.segments[len(l.segments)-1]
		begins.BeginSegment(last.Recent, last.Epoch)
	}
}

// segmented is a fold that takes up from a seal what the records of the present segment do not tell.
type segmented interface {
	BeginSegment(recent map[string][]time.Time, epoch int64)
	Epoch() int64
}

// resume takes the fold up from the snapshot, when there is one that belongs to the log. Whatever is
// wrong with it, the log is read from its start instead. Called with l.mu held.
func (l *Log) resume() error {
	if l.snap.fold == nil || l.opts.Snapshot == "" {
		return nil
	}
	size, err := l.inspect()
	if err != nil || l.file == nil {
		return err
	}
	s, err := readSnapshot(l.opts.Snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = l.restore(s, size)
	}
	if err != nil {
		l.opts.Logf("snapshot %s is not used: %v; the log is read from its start", l.opts.Snapshot, err)
	}
	return nil
}

func (l *Log) restore(s snapshot, size int64) error {
	at, err := s.Log.place(l.file, size)
	if err != nil {
		return err
	}
	runs, err := s.openRuns(filepath.Dir(l.opts.Snapshot))
	if err != nil {
		return err
	}
	f := l.snap.finder
	f.runs, f.from = runs, at.mark()
	if err := l.snap.fold.Restore(s.State); err != nil {
		f.close()
		l.attach() // a new finder; the fold is as new
		return err
	}
	l.at, l.snap.seq = at, at.head.Seq
	return nil
}

func (p place) mark() mark { return mark{offset: p.offset, head: p.head} }

// Behind is how many records were folded since the snapshot that is on the disk, all when there is
// none. It is 0 for a log without snapshots.
func (l *Log) Behind() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.snap.fold == nil || l.opts.Snapshot == "" {
		return 0
	}
	return l.at.head.Seq - l.snap.seq
}

// WriteSnapshot puts the fold as it stands on the disk, for the next to open the log. It disturbs
// nobody: the log is held only while the state is taken. The snapshot is worth nothing without the
// log and never needed: when WriteSnapshot fails or is interrupted, the one that was there before
// stands, or the log is read from its start.
func (l *Log) WriteSnapshot(ctx context.Context) error {
	l.snap.writing.Lock()
	defer l.snap.writing.Unlock()
	if l.snap.fold == nil || l.opts.Snapshot == "" {
		return nil
	}
	taken, finder, err := l.takeSnapshot()
	if taken == nil || err != nil {
		return err
	}
	if err := l.store(ctx, taken, finder); err != nil {
		return fmt.Errorf("write snapshot %s: %w", l.opts.Snapshot, err)
	}
	l.mu.Lock()
	if l.snap.finder == finder { // else the log was cut meanwhile
		l.snap.seq = taken.Log.Seq
	}
	l.mu.Unlock()
	return nil
}

// KeepSnapshot writes a snapshot each time the log has grown far enough since the last one, and once
// more when ctx ends; then it returns. What fails is reported to Options.Logf and tried again later.
func (l *Log) KeepSnapshot(ctx context.Context) {
	changed, stop := l.Changed()
	defer stop()
	var failed time.Time
	for ctx.Err() == nil {
		if l.Behind() >= keepEvery && time.Since(failed) >= keepPause {
			if err := l.WriteSnapshot(ctx); err != nil && ctx.Err() == nil {
				l.opts.Logf("%v", err)
				failed = time.Now()
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	if l.Behind() < keepAtEnd {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLast)
	defer cancel()
	if err := l.WriteSnapshot(last); err != nil {
		l.opts.Logf("%v", err)
	}
}

// takeSnapshot gives the state at the present place, nil when there is nothing new, and the finder that
// has the indexes of it.
func (l *Log) takeSnapshot() (*snapshot, *Finder, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if err := l.usable(); err != nil {
		return nil, nil, err
	}
	if l.damage != nil {
		return nil, nil, l.damage
	}
	if l.opts.Guard != nil {
		if err := l.opts.Guard(); err != nil {
			return nil, nil, err
		}
	}
	if l.at.head.Seq == l.snap.seq || l.at.noLF {
		return nil, nil, nil
	}
	first, err := firstHash(l.file)
	if err != nil {
		return nil, nil, err
	}
	state, err := l.snap.fold.Save()
	if err != nil {
		return nil, nil, err
	}
	l.snap.finder.freeze(l.at.mark())
	last := l.at.offset - int64(len(l.at.lastLine)) - 1
	return &snapshot{
		Version: snapshotVersion, State: state,
		Log: snapshotPlace{Base: l.base, First: first, Offset: l.at.offset, Last: last, Seq: l.at.head.Seq, Hash: l.at.head.Hash},
	}, l.snap.finder, nil
}

// store writes first the index that is missing, then the snapshot, then removes what it replaces.
func (l *Log) store(ctx context.Context, s *snapshot, f *Finder) error {
	dir := filepath.Dir(l.opts.Snapshot)
	if err := l.opts.FS.MkdirAll("snapshot", dir, 0o700); err != nil {
		return err
	}
	kept, merge := f.toMerge()
	if len(merge) == 0 {
		return errors.New("the log was cut meanwhile")
	}
	made, err := l.mergeRuns(ctx, dir, merge)
	if errors.Is(err, errIndexDamaged) {
		if err := f.reindex(l.file, func(r *indexRun) bool { return slices.Contains(merge, r) }); err != nil {
			return err
		}
		kept, merge = f.toMerge()
		made, err = l.mergeRuns(ctx, dir, merge)
	}
	if err != nil {
		return err
	}
	for _, r := range append(kept, made) {
		s.Indexes = append(s.Indexes, snapshotIndex{File: r.name, ID: hex.EncodeToString(r.file.id[:])})
	}
	text, err := s.encode()
	if err == nil {
		err = l.opts.FS.WriteFile("snapshot", l.opts.Snapshot, text, 0o600)
	}
	if err != nil {
		made.close()
		os.Remove(filepath.Join(dir, made.name))
		return err
	}
	f.replace(merge, made)
	l.removeStale(dir, s)
	return nil
}

// toMerge divides the runs into those whose files stay and those that are to become one file.
func (f *Finder) toMerge() (kept, merge []*indexRun) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	from, size := len(f.runs), uint64(0)
	for i := len(f.runs) - 1; i >= 0; i-- {
		if r := f.runs[i]; r.mem != nil || r.size() < mergeRatio*size {
			from = i
		}
		size += f.runs[i].size()
	}
	return append([]*indexRun(nil), f.runs[:from]...), append([]*indexRun(nil), f.runs[from:]...)
}

// mergeRuns writes one index for the runs. A damaged file among them is replaced first.
func (l *Log) mergeRuns(ctx context.Context, dir string, merge []*indexRun) (*indexRun, error) {
	from, to := merge[0].from, merge[len(merge)-1].to
	parts := make([]iter.Seq2[indexEntry, error], len(merge))
	for i, r := range merge {
		parts[i] = r.all()
	}
	id := newIndexID()
	made := &indexRun{from: from, to: to, name: indexName(from, to, id)}
	path := filepath.Join(dir, made.name)
	if err := writeIndex(l.opts.FS, path, id, from, to, untilDone(ctx, merged(parts))); err != nil {
		return nil, err
	}
	var err error
	made.file, err = openIndex(path)
	return made, err
}

// untilDone ends the sequence with the context's error.
func untilDone(ctx context.Context, entries iter.Seq2[indexEntry, error]) iter.Seq2[indexEntry, error] {
	return func(yield func(indexEntry, error) bool) {
		n := 0
		for e, err := range entries {
			if n++; n%4096 == 0 && err == nil {
				err = ctx.Err()
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// replace puts made in the place of the runs that it was made of.
func (f *Finder) replace(merge []*indexRun, made *indexRun) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		made.close()
		return
	}
	first := len(f.runs) - len(merge)
	for _, r := range f.runs[first:] {
		r.close()
	}
	f.runs = append(f.runs[:first], made)
}

// removeStale removes indexes that the snapshot does not name.
func (l *Log) removeStale(dir string, s *snapshot) {
	named := make(map[string]bool)
	for _, x := range s.Indexes {
		named[x.File] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the next snapshot tries again
	}
	for _, e := range entries {
		// A temporary file of an index that was interrupted is ".index-….tmp-…".
		if named[e.Name()] || !isIndexName(strings.TrimPrefix(e.Name(), ".")) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleIndex {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
