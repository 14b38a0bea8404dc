package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/rescue"
)

// hookVariable has the program do something when it comes by a point: ACTION@POINT[@FILE].
const hookVariable = "APPROVALD_E2E_HOOK"

// hookFromEnvironment sets the hook in the program under test. The actions: panic, kill (by SIGKILL), term (SIGTERM to itself, and
// on), wait (until FILE exists; FILE.there is made on arrival). Each happens at the first time that FILE.armed is there, or at the first of
// all without a FILE.
func hookFromEnvironment() {
	action, rest, ok := strings.Cut(os.Getenv(hookVariable), "@")
	if !ok {
		return
	}
	point, file, _ := strings.Cut(rest, "@")
	var once sync.Once
	rescue.Hook(func(at string) {
		if at != point {
			return
		}
		if file != "" && action != "wait" {
			if _, err := os.Stat(file + ".armed"); err != nil {
				return
			}
		}
		once.Do(func() {
			switch action {
			case "panic":
				panic("out of luck at " + point)
			case "kill":
				syscall.Kill(os.Getpid(), syscall.SIGKILL) //nolint:errcheck // nothing comes after it
				select {}
			case "term":
				syscall.Kill(os.Getpid(), syscall.SIGTERM) //nolint:errcheck // as above
				time.Sleep(10 * time.Millisecond)          // lets the signal in before the next step
			case "wait":
				os.WriteFile(file+".there", nil, 0o600) //nolint:errcheck // the test would say so
				for {
					if _, err := os.Stat(file); err == nil {
						return
					}
					time.Sleep(time.Millisecond)
				}
			}
		})
	})
}

// hooked starts the daemon with an action at a point, which happens at the first time that the daemon comes by there, or with later
// once arm was called.
func (w *world) hooked(action, point string, later bool) (p *process, arm func()) {
	w.t.Helper()
	file := filepath.Join(w.dir, "hook")
	arm = func() { w.must(os.WriteFile(file+".armed", nil, 0o600)) }
	if !later {
		arm()
	}
	env := w.env
	w.env = append(append([]string{}, env...), hookVariable+"="+action+"@"+point+"@"+file)
	defer func() { w.env = env }()
	return w.start("up"), arm
}
