package app

import (
	"sync"
	"time"

	"github.com/approvald/approvald/internal/gateapi"
)

// sightings remembers since when each trouble is there. One that is away for a moment, as while a send is tried once more, has not
// ended.
type sightings struct {
	mu   sync.Mutex
	seen map[string]sighting
}

type sighting struct{ since, last time.Time }

// blink is how long a trouble may be out of sight without having ended.
const blink = 3 * lookEvery

// note takes what is seen now, and answers it with since when.
func (s *sightings) note(now time.Time, list []gateapi.Trouble) []gateapi.Trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = make(map[string]sighting)
	}
	for i, t := range list {
		before, known := s.seen[t.Code]
		if !known || now.Sub(before.last) > blink {
			before.since = now
		}
		s.seen[t.Code] = sighting{since: before.since, last: now}
		list[i].Since = before.since
	}
	return list
}
