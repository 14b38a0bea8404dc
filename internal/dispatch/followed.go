package dispatch

// followEvery is how many records of the approval log a core takes note of at a time: a start looks through about as many
// more.
const followEvery = 1000

// follows is how far in the approval log a core is.
type follows struct {
	seq   int64 // told
	noted int64 // recorded: nothing that came before is owed to a card that shows a grant
	again int64 // when it is looked at next
	every int64
}

// logRead records now and then how far the core is. A card that shows a grant is not kept in mind; when the grant is used or
// taken back, the log tells. So what the log told is recorded only up to where nothing of it is still to be shown.
func (c *Core) logRead(seq int64) {
	f := &c.follows
	f.seq = max(f.seq, seq)
	if !c.recovered || f.seq-f.noted < f.every || f.seq < f.again {
		return
	}
	f.again = f.seq + f.every
	upTo := f.seq
	for _, o := range c.ops {
		if !o.pending() && o.digest == nil {
			upTo = min(upTo, o.ended-1)
		}
	}
	if upTo-f.noted >= f.every/2 {
		f.noted = upTo
		c.journal(EventLogFollowed, "", followedPayload{LogSeq: upTo})
	}
}
