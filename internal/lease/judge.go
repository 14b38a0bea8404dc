package lease

import (
	"fmt"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

// verdict on a recorded holder.
type verdict struct {
	dead bool
	// reason is one of the Reason constants when dead.
	reason string
	// why is for people.
	why string
}

// startSlack is how much later than its record a process must have started to
// be certainly another one: far more than rounding to seconds and ticks.
const startSlack = 10 * time.Second

// judge says whether the holder of a readable record has certainly ended. In
// doubt it lives.
func (t *taker) judge(o observed) verdict {
	if o.rec.Holder == nil {
		started, _ := time.Parse(time.RFC3339, o.rec.StartedAt)
		return t.judgeForeign(o.rec.PID, started, o.uid)
	}
	v, why := t.prober.Judge(o.rec.identity())
	if !v.Dead() {
		return verdict{why: why}
	}
	reason := ReasonGone
	if v == procid.Recycled {
		reason = t.recycledOrForeign(o.rec.PID, o.rec.Holder.UID)
	}
	return verdict{dead: true, reason: reason, why: why}
}

// judgeForeign judges a process of which only its number and a wall-clock time
// are known. Which process the number belongs to now can be told only by when
// it started, and that only while the machine's clocks agree with each other.
func (t *taker) judgeForeign(pid int, at time.Time, uid uint32) verdict {
	v, stat, why := t.prober.Look(pid)
	if v.Dead() {
		return verdict{dead: true, reason: ReasonGone, why: why}
	}
	if stat.StartTicks == 0 {
		return verdict{why: why}
	}
	boot, ok := t.bootTime()
	if !ok {
		return verdict{why: why + "; the clock was set, so its start cannot be compared"}
	}
	if started := boot.Add(stat.SinceBoot()); started.Sub(at) <= startSlack {
		return verdict{why: why}
	}
	return verdict{
		dead: true, reason: t.recycledOrForeign(pid, uid),
		why: fmt.Sprintf("process %d started after the record was written", pid),
	}
}

func (t *taker) recycledOrForeign(pid int, uid uint32) string {
	if now, err := t.prober.UID(pid); err == nil && now != uid {
		return ReasonForeign
	}
	return ReasonRecycled
}

// bootTime returns when the machine started, when two ways to tell agree.
func (t *taker) bootTime() (time.Time, bool) {
	kernel, err := t.prober.BootTime()
	if err != nil {
		return time.Time{}, false
	}
	up, err := t.sys.uptime()
	if err != nil {
		return time.Time{}, false
	}
	const slack = 2 * time.Second
	if off := t.now().Add(-up).Sub(kernel); off > slack || off < -slack {
		return time.Time{}, false
	}
	return kernel, true
}
