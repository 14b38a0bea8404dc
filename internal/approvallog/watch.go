package approvallog

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/approvald/approvald/internal/rescue"
)

const (
	// watchPause is how often the file is looked at while the kernel tells of its changes, in case
	// a change went untold.
	watchPause = time.Second
	// blindPause is how often it is looked at when the kernel cannot tell: no directory yet, or no
	// watches left.
	blindPause = 20 * time.Millisecond
)

// watcher wakes those who wait for a log to grow. It runs only while somebody waits.
type watcher struct {
	path string

	mu   sync.Mutex
	subs map[chan struct{}]struct{}
	stop chan struct{} // closed to end the goroutine; nil while none runs
	done chan struct{}
}

// Changed returns a channel that receives within milliseconds after any process appended, and at
// times without a cause. To miss nothing: call Changed, then look, then wait. The caller calls stop
// when it no longer listens.
func (l *Log) Changed() (changed <-chan struct{}, stop func()) {
	return l.watch.subscribe()
}

func (w *watcher) subscribe() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subs == nil {
		w.subs = make(map[chan struct{}]struct{})
	}
	w.subs[c] = struct{}{}
	if w.stop == nil {
		w.stop, w.done = make(chan struct{}), make(chan struct{})
		go w.run(w.stop, w.done, w.open(), w.look())
	}
	return c, func() { w.unsubscribe(c) }
}

func (w *watcher) unsubscribe(c chan struct{}) {
	w.mu.Lock()
	delete(w.subs, c)
	var done chan struct{}
	if len(w.subs) == 0 && w.stop != nil {
		close(w.stop)
		done = w.done
		w.stop = nil
	}
	w.mu.Unlock()
	if done != nil {
		<-done
	}
}

// close ends the goroutine although somebody may still listen.
func (w *watcher) close() {
	w.mu.Lock()
	w.subs = nil
	w.mu.Unlock()
	w.unsubscribe(nil)
}

// notify wakes everybody. One wake-up waits at most for each: what it tells is to look.
func (w *watcher) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.subs {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// open starts the kernel's watch of the log's directory, where the file may yet come to be; nil
// when there is none to be had.
func (w *watcher) open() *fsnotify.Watcher {
	notes, err := fsnotify.NewWatcher()
	if err != nil {
		return nil
	}
	if err := notes.Add(filepath.Dir(w.path)); err != nil {
		notes.Close()
		return nil
	}
	return notes
}

// look returns what the file is at the moment; nil when there is none.
func (w *watcher) look() os.FileInfo {
	info, err := os.Stat(w.path)
	if err != nil {
		return nil
	}
	return info
}

func differs(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return (a == nil) != (b == nil)
	}
	return a.Size() != b.Size() || !os.SameFile(a, b)
}

func (w *watcher) run(stop, done chan struct{}, notes *fsnotify.Watcher, last os.FileInfo) {
	defer close(done)
	rescue.At("log watch")
	ticker := time.NewTicker(blindPause)
	defer ticker.Stop()
	for {
		var events chan fsnotify.Event
		var errs chan error
		pause := blindPause
		if notes != nil {
			events, errs, pause = notes.Events, notes.Errors, watchPause
		}
		ticker.Reset(pause)
		select {
		case <-stop:
			if notes != nil {
				notes.Close()
			}
			return
		case event := <-events:
			if event.Name != filepath.Clean(w.path) || event.Op == fsnotify.Chmod {
				continue
			}
		case <-errs: // an overflow: look
		case <-ticker.C:
			if notes == nil {
				notes = w.open()
			}
		}
		if info := w.look(); differs(last, info) {
			last = info
			w.notify()
		}
	}
}
