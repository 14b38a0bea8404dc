package dispatch

import (
	"cmp"
	"time"
)

// timer asks for an operation to be looked at.
type timer struct {
	at time.Time
	op CycleID
}

type timers []timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	return cmp.Or(t[i].at.Compare(t[j].at), cmp.Compare(t[i].op.Seq, t[j].op.Seq), cmp.Compare(t[i].op.Key, t[j].op.Key)) < 0
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }

// Push implements heap.Interface.
func (t *timers) Push(x any) { *t = append(*t, x.(timer)) }

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}
