package approvallog

import (
	"iter"
	"slices"
)

// memIndex is an index in memory: about 30 bytes a record. Additions must not run beside anything
// else.
type memIndex struct {
	entries []indexEntry
	before  []uint32 // for each entry the one of the same slot that was added before it, plus 1
	slots   []uint32 // by hash: the entry added last, plus 1; their number is a power of two
}

func (m *memIndex) add(e indexEntry) {
	if len(m.entries) >= len(m.slots) {
		m.grow()
	}
	m.entries = append(m.entries, e)
	m.before = append(m.before, 0)
	m.link(len(m.entries) - 1)
}

func (m *memIndex) link(i int) {
	slot := &m.slots[m.entries[i].hash&uint64(len(m.slots)-1)]
	m.before[i] = *slot
	*slot = uint32(i) + 1
}

func (m *memIndex) grow() {
	m.slots = make([]uint32, max(64, 2*len(m.slots)))
	for i := range m.entries {
		m.link(i)
	}
}

// lookup appends the entries of the hash, in the order of their places.
func (m *memIndex) lookup(hash uint64, found []indexEntry) []indexEntry {
	if len(m.slots) == 0 {
		return found
	}
	start := len(found)
	for i := m.slots[hash&uint64(len(m.slots)-1)]; i != 0; i = m.before[i-1] {
		if e := m.entries[i-1]; e.hash == hash {
			found = append(found, e)
		}
	}
	slices.Reverse(found[start:])
	return found
}

// all yields every entry in rising order.
func (m *memIndex) all() iter.Seq2[indexEntry, error] {
	return func(yield func(indexEntry, error) bool) {
		sorted := slices.Clone(m.entries)
		slices.SortFunc(sorted, compareEntries)
		for _, e := range sorted {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// merged yields the entries of several indexes in rising order.
func merged(parts []iter.Seq2[indexEntry, error]) iter.Seq2[indexEntry, error] {
	switch len(parts) {
	case 0:
		return func(func(indexEntry, error) bool) {}
	case 1:
		return parts[0]
	}
	return func(yield func(indexEntry, error) bool) {
		left, stopLeft := iter.Pull2(parts[0])
		defer stopLeft()
		right, stopRight := iter.Pull2(merged(parts[1:]))
		defer stopRight()
		a, errA, okA := left()
		b, errB, okB := right()
		for okA || okB {
			if errA != nil || errB != nil {
				yield(indexEntry{}, errorOf(errA, errB))
				return
			}
			if okA && (!okB || compareEntries(a, b) <= 0) {
				if !yield(a, nil) {
					return
				}
				a, errA, okA = left()
			} else {
				if !yield(b, nil) {
					return
				}
				b, errB, okB = right()
			}
		}
	}
}

func errorOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
