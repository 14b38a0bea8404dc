package approvallog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// workerVariable makes the test binary a process that appends: "PATH NAME COUNT".
const workerVariable = "APPROVALLOG_TEST_WORKER"

// runWorker appends COUNT records with keys NAME-1, NAME-2, ... and prints each key when, and only
// when, its record was acknowledged. One called "stay" appends nothing and keeps the lock.
func runWorker(work string) int {
	fields := strings.Split(work, " ")
	if len(fields) != 3 {
		return 0
	}
	count, err := strconv.Atoi(fields[2])
	if err != nil {
		return 2
	}
	l, err := Open(Options{Path: fields[0], LockWait: 100 * time.Millisecond})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer l.Close()
	if fields[1] == "stay" { // in the lock's section, until it is killed
		l.Update(context.Background(), func(*Tx) error {
			fmt.Println("in")
			for {
				time.Sleep(time.Hour)
			}
		})
	}
	for i := range count {
		key := fmt.Sprintf("%s-%d", fields[1], i+1)
		for {
			_, err := l.Update(context.Background(), func(tx *Tx) error {
				_, err := tx.Append(draft(key))
				return err
			})
			if err == nil {
				break
			}
			if !errors.Is(err, ErrLocked) {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		fmt.Println(key)
	}
	return 0
}

func TestProcessesKilledAtRandom(t *testing.T) { processesKilledAtRandom(t, 8, 25) }

// processesKilledAtRandom lets many processes append and kills half of them at some time: the
// chain is dense and clean, with every acknowledged record once and none twice.
func processesKilledAtRandom(t *testing.T, processes, appends int) {
	path := logPath(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	var group sync.WaitGroup
	for p := range processes {
		killAfter := -1
		if p%2 == 0 {
			killAfter = random.IntN(appends)
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s p%d %d", workerVariable, path, p, appends))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			lines := bufio.NewScanner(out)
			for n := 0; lines.Scan(); n++ {
				mu.Lock()
				acknowledged[lines.Text()] = true
				mu.Unlock()
				if n == killAfter {
					cmd.Process.Kill()
				}
			}
			if err := cmd.Wait(); err != nil && killAfter < 0 {
				t.Errorf("worker %d: %v: %s", p, err, stderr.String())
			}
		})
	}
	group.Wait()

	h := &recorder{}
	l := openTest(t, path, func(o *Options) { o.Fold = h })
	mustAppend(t, l, "last") // takes over and quarantines what the dead left
	seen := map[string]bool{}
	for _, r := range h.records {
		if seen[r.ActionKey] {
			t.Errorf("%s is there twice", r.ActionKey)
		}
		seen[r.ActionKey] = true
	}
	for key := range acknowledged {
		if !seen[key] {
			t.Errorf("%s was acknowledged and is not there", key)
		}
	}
	wantClean(t, path, int64(len(h.records)))
	l.Close()
	if left := listed(t, filepath.Dir(path)); strings.Contains(left, ".lock.claim") {
		t.Errorf("left behind: %s", left)
	}
}
