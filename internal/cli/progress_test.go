package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// A long verify says on a terminal how far it is, and takes that off again; a quick one, and one whose talk goes to a file, say nothing.
func TestProgressOfALongVerify(t *testing.T) {
	ours, theirs, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	p := newProgress(theirs)
	p.show(1<<20, 4<<20)
	if p.shown {
		t.Error("shown at once")
	}
	p.began = time.Now().Add(-time.Second)
	p.show(1<<20, 4<<20)
	p.show(2<<20, 4<<20) // too soon after the other
	p.show(1, 0)
	p.clear()
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 1024)
	n, err := ours.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	for n < len(text) && !bytes.Contains(text[:n], []byte("\x1b[K")) {
		more, err := ours.Read(text[n:])
		if err != nil {
			t.Fatalf("%v after %q", err, text[:n])
		}
		n += more
	}
	if got := string(text[:n]); strings.Count(got, "\r") != 2 || !strings.HasPrefix(got, "\rverifying  25% of 4 MiB") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("on the terminal: %q", got)
	}
	var file bytes.Buffer
	p = newProgress(&file)
	p.began = time.Time{}
	p.show(1, 2)
	p.clear()
	if file.Len() > 0 {
		t.Errorf("in a file: %q", file.String())
	}
}
