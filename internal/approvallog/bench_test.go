package approvallog

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/durable"
)

// The costs that are promised are ratios within one run, so that they hold on any machine. Each
// benchmark measures both sides in turns and reports the ratio of their medians.

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkAppend compares the append of one record with a bare write and fdatasync of the same
// bytes to a file beside it: at most 1.3 times.
func BenchmarkAppend(b *testing.B) {
	path := logPath(b)
	l := openTest(b, path)
	mustAppend(b, l, "k")
	line := append(mustAppend(b, l, "k")[0].Raw, '\n') // as long as those that follow
	bare, err := os.OpenFile(filepath.Join(filepath.Dir(path), "bare"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer bare.Close()
	var ours, theirs []time.Duration
	for b.Loop() {
		start := time.Now()
		mustAppend(b, l, "k")
		ours = append(ours, time.Since(start))
		start = time.Now()
		if _, err := bare.Write(line); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(bare.Fd())); err != nil {
			b.Fatal(err)
		}
		theirs = append(theirs, time.Since(start))
	}
	b.ReportMetric(float64(median(ours))/float64(median(theirs)), "x-bare")
	b.ReportMetric(float64(median(ours).Microseconds()), "µs-median")
}

// BenchmarkConcurrentAppend compares 64 appenders with one: at least 10 times the rate.
func BenchmarkConcurrentAppend(b *testing.B) {
	const appenders, each = 64, 10
	l := openTest(b, logPath(b), func(o *Options) { o.LockWait = time.Minute })
	var serial, together time.Duration
	for b.Loop() {
		start := time.Now()
		for range each {
			mustAppend(b, l, "k")
		}
		serial += time.Since(start)
		start = time.Now()
		var group sync.WaitGroup
		for range appenders {
			group.Go(func() {
				for range each {
					mustAppend(b, l, "k")
				}
			})
		}
		group.Wait()
		together += time.Since(start)
	}
	b.ReportMetric(appenders*float64(serial)/float64(together), "x-serial")
}

// longLog makes a log of n records of the usual size without the engine's fsyncs.
func longLog(b *testing.B, n int) string {
	b.Helper()
	path := logPath(b)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		b.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var text bytes.Buffer
	head, now := Head{}, testClock
	for i := range n {
		until := now.Add(24 * time.Hour).Format(TimeLayout)
		d := event(EventRequested, "agent:builder", fmt.Sprintf("deploy-%d", i/2), map[string]any{
			"class": "deploy.production", "summary": "Roll out the new version to all regions", "reversible": true, "execution": "harness",
			"payload_hash": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "wait_until": until,
			"approvald": map[string]any{"expires_at": until, "quorum": 1, "request_digest": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
		})
		if i%2 == 1 {
			d = event(EventGranted, "human:alice", fmt.Sprintf("deploy-%d", i/2), map[string]any{
				"class": "deploy.production", "payload_hash": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "note": "ok",
				"sender": map[string]any{"channel": "telegram", "id": 111},
			})
		}
		now = now.Add(time.Second)
		r, err := encode(head, now, d)
		if err != nil {
			b.Fatal(err)
		}
		head = r.Head()
		text.Write(r.Raw)
		text.WriteByte('\n')
		if text.Len() > 1<<20 || i == n-1 {
			if _, err := text.WriteTo(f); err != nil {
				b.Fatal(err)
			}
		}
	}
	return path
}

// BenchmarkVerify compares verify with coreutils' sha256sum of the same file: at most as long.
func BenchmarkVerify(b *testing.B) {
	path := longLog(b, 200_000)
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(info.Size())
	var ours, theirs []time.Duration
	for b.Loop() {
		start := time.Now()
		if report := verify(b, path); report.Status != StatusClean {
			b.Fatalf("%+v", report)
		}
		ours = append(ours, time.Since(start))
		start = time.Now()
		if err := exec.Command("sha256sum", path).Run(); err != nil {
			b.Fatal(err)
		}
		theirs = append(theirs, time.Since(start))
	}
	b.ReportMetric(float64(median(ours))/float64(median(theirs)), "x-sha256sum")
}

// BenchmarkOpen is the start without a snapshot: verify and fold into requests.
func BenchmarkOpen(b *testing.B) {
	const records = 200_000
	path := longLog(b, records)
	for b.Loop() {
		q := NewRequests()
		l, err := Open(Options{Path: path, Fold: q})
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
	b.ReportMetric(records*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkOpenSnapshot is the start with a snapshot and a look at one old request, on a log as long as
// that of BenchmarkOpen.
func BenchmarkOpenSnapshot(b *testing.B) {
	const records = 200_000
	path := longLog(b, records)
	open := func() (*Log, *Requests) {
		q := NewRequests()
		l, err := Open(Options{Path: path, Fold: q, Snapshot: filepath.Join(filepath.Dir(path), "snapshot.json"), Logf: b.Fatalf})
		if err != nil {
			b.Fatal(err)
		}
		return l, q
	}
	l, _ := open()
	if err := l.WriteSnapshot(b.Context()); err != nil {
		b.Fatal(err)
	}
	l.Close()
	for b.Loop() {
		l, q := open()
		err := l.View(func() {
			if _, known := q.Get("deploy-17"); !known {
				b.Error("an old request is not known")
			}
		})
		if err != nil || l.Behind() != 0 {
			b.Fatal(err, l.Behind())
		}
		l.Close()
	}
}

// BenchmarkFind is a look-up in an index of a million entries on the disk.
func BenchmarkFind(b *testing.B) {
	dir := b.TempDir()
	mem := &memIndex{}
	for i := range 1_000_000 {
		mem.add(makeEntry(fmt.Sprint("key-", i), int64(i), true))
	}
	if err := writeIndex(durable.FS{}, filepath.Join(dir, "index-1"), newIndexID(), mark{}, mark{}, mem.all()); err != nil {
		b.Fatal(err)
	}
	x, err := openIndex(filepath.Join(dir, "index-1"))
	if err != nil {
		b.Fatal(err)
	}
	defer x.close()
	i := 0
	for b.Loop() {
		i = (i + 7919) % 1_000_000
		if found, err := x.lookup(keyHash(fmt.Sprint("key-", i)), nil); err != nil || len(found) != 1 {
			b.Fatal(found, err)
		}
	}
}
