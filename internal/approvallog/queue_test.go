package approvallog

import (
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestWaitsThatAreCutShortDoNotPileUp: a wait in the kernel takes a thread that nothing can call
// back. A writer that tries again and again in a line that does not move must not add one each time.
func TestWaitsThatAreCutShortDoNotPileUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	first, second := &queue{path: path}, &queue{path: path}
	defer first.close()
	defer second.close()
	if in, err := first.enter(t.Context(), 0); !in || err != nil {
		t.Fatalf("an empty line: %v, %v", in, err)
	}
	before := runtime.NumGoroutine()
	for range 50 {
		if in, err := second.enter(t.Context(), time.Millisecond); in || !errors.Is(err, errQueueFull) {
			t.Fatalf("behind somebody: %v, %v", in, err)
		}
	}
	if n := runtime.NumGoroutine() - before; n > 1 {
		t.Errorf("%d goroutines wait in the kernel for one writer", n)
	}
	first.leave()
	if in, err := second.enter(t.Context(), time.Minute); !in || err != nil {
		t.Errorf("after the line moved: %v, %v", in, err)
	}
	second.leave()
	if in, err := first.enter(t.Context(), time.Minute); !in || err != nil {
		t.Errorf("the turn was not given on: %v, %v", in, err)
	}
	first.leave()
}
