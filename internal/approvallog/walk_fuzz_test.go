package approvallog

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

// FuzzWalk reads any bytes as a log: at once, and in two steps as a reader does that came while they were being written. Both find
// the same, and what counts as a record ends with a line.
func FuzzWalk(f *testing.F) {
	lines := makeLog(f, logPath(f), 3)
	whole := join(lines...)
	for _, seed := range [][]byte{
		whole, whole[:len(whole)-1], whole[:len(whole)-40], join(lines[0], lines[1][:50], lines[1]), join(lines[0], lines[2]),
		join(whole, make([]byte, 9)), join(whole, []byte("\n")), bytes.Replace(whole, []byte("\n"), []byte("\r\n"), -1), join([]byte("\ufeff"), whole),
		join(lines[0], lines[0]), join(lines[0], make([]byte, 5), lines[1]), join(lines[0], []byte(strings.Repeat("[", 500)+"\n")),
	} {
		f.Add(seed, len(lines[0])+30)
	}
	f.Fuzz(func(t *testing.T, content []byte, cut int) {
		walkTo := func(w *walk, size int) error {
			w.size, w.tail = int64(size), nil
			return w.run(context.Background())
		}
		once := &walk{src: bytes.NewReader(content)}
		err := walkTo(once, len(content))
		corrupt, damaged := errors.AsType[*CorruptError](err)
		if err != nil && !damaged {
			t.Fatal(err)
		}
		end := once.at.offset
		if end > int64(len(content)) || end > 0 && content[end-1] != '\n' && !once.at.noLF {
			t.Fatalf("%d of %d bytes are records", end, len(content))
		}
		if damaged && (corrupt.Line != once.at.line+1 || corrupt.Offset != end && !once.at.noLF || corrupt.Reason == "" || corrupt.Detail == "") {
			t.Fatalf("%+v behind %+v", corrupt, once.at)
		}
		if cut < 0 || cut > len(content) {
			return
		}
		twice := &walk{src: bytes.NewReader(content)}
		if err := walkTo(twice, cut); err != nil {
			// A beginning that is damaged is damaged however it goes on, but for an end that was taken for a torn one.
			if c, ok := errors.AsType[*CorruptError](err); !ok || !damaged || c.Line < corrupt.Line {
				t.Fatalf("the first %d bytes: %v; all: %v", cut, err, corrupt)
			}
			return
		}
		err = walkTo(twice, len(content))
		again, damagedToo := errors.AsType[*CorruptError](err)
		if err != nil && !damagedToo {
			t.Fatal(err)
		}
		if twice.at.head != once.at.head || (twice.tail == nil) != (once.tail == nil) || damaged != damagedToo || damaged && again.Line != corrupt.Line {
			t.Fatalf("at once %+v, tail %v, %v; cut at %d %+v, tail %v, %v", once.at, once.tail, corrupt, cut, twice.at, twice.tail, again)
		}
	})
}
