package lease

import (
	"bytes"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/rescue"
)

// notifier says that something happened to watched files. It does not say
// what: whoever listens looks for itself. It speaks inotify directly because
// the standby needs IN_CLOSE_WRITE, the event of a dying holder's descriptor.
type notifier struct {
	// C holds at most one unread notice. It is nil, and never ready, in the
	// zero notifier, which watches nothing.
	C chan struct{}
	// broken holds what ended the notices, if not close.
	broken chan error
	fd     int
	file   *os.File
	prefix string
}

// newNotifier watches nothing yet. prefix, when not empty, is how a name in a
// watched directory must start to be worth a notice.
func newNotifier(sys *system, prefix string) (*notifier, error) {
	fd, err := sys.inotify()
	if err != nil {
		return nil, err
	}
	n := &notifier{C: make(chan struct{}, 1), broken: make(chan error, 1), fd: fd, file: os.NewFile(uintptr(fd), "inotify"), prefix: prefix}
	go rescue.Go("lease notifier", func(err error) { n.broken <- err }, n.read)
	return n, nil
}

// add watches path as well. Failing is no error: the caller looks now and then
// in any case.
func (n *notifier) add(path string, mask uint32) {
	if n.file != nil {
		unix.InotifyAddWatch(n.fd, path, mask)
	}
}

func (n *notifier) read() {
	defer n.file.Close()
	buf := make([]byte, 16<<10)
	for {
		count, err := n.file.Read(buf)
		if err != nil {
			return
		}
		if n.concerns(buf[:count]) {
			select {
			case n.C <- struct{}{}:
			default:
			}
		}
	}
}

func (n *notifier) concerns(events []byte) bool {
	if n.prefix == "" {
		return true
	}
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		end := unix.SizeofInotifyEvent + int(event.Len)
		if end > len(events) {
			return true
		}
		name := string(bytes.TrimRight(events[unix.SizeofInotifyEvent:end], "\x00"))
		if name == "" || strings.HasPrefix(name, n.prefix) {
			return true
		}
		events = events[end:]
	}
	return false
}

// close ends the watch. The descriptor is closed soon after, by the goroutine
// that reads it: the kernel takes milliseconds over that, and a release or a
// take-over should not.
func (n *notifier) close() {
	if n.file != nil {
		n.file.SetReadDeadline(time.Unix(1, 0))
	}
}
