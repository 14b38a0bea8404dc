package approvallog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// verdict is what every reader must make of a log's bytes.
type verdict struct {
	status  Status
	records int64
	reason  Reason
	line    int64
}

// checkVerdict holds Verify, Open and the next append against the verdict.
func checkVerdict(t *testing.T, content []byte, want verdict) {
	t.Helper()
	path := logPath(t)
	writeFile(t, path, content)
	report := verify(t, path)
	if report.Status != want.status || report.Records != want.records || report.Reason != want.reason || report.Line != want.line {
		t.Fatalf("verify: %s %d records %q line %d (%s); want %+v", report.Status, report.Records, report.Reason, report.Line, report.Detail, want)
	}
	if !bytes.Equal(readFile(t, path), content) {
		t.Fatal("verify changed the file")
	}
	h := &recorder{}
	l, err := Open(Options{Path: path, Fold: h})
	if int64(len(h.records)) != want.records {
		t.Fatalf("open folded %d records, want %d", len(h.records), want.records)
	}
	if want.status == StatusCorrupt {
		corrupt, ok := errors.AsType[*CorruptError](err)
		if !ok || corrupt.Reason != want.reason || corrupt.Line != want.line || corrupt.Offset != report.Offset || corrupt.Seq != report.FirstBadSeq {
			t.Fatalf("open: %v, verify: %v", err, report.Err())
		}
		checkReadOnly(t, path, content, want)
		return
	}
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer l.Close()
	if l.Torn() != (want.status == StatusTorn) {
		t.Errorf("Torn() = %v", l.Torn())
	}
	if !bytes.Equal(readFile(t, path), content) {
		t.Fatal("open changed the file")
	}
	mustAppend(t, l, "next")
	wantClean(t, path, want.records+1)
	checkQuarantine(t, path, content[report.Offset:], want.status == StatusTorn)
}

// checkReadOnly makes sure that a damaged log is read up to the damage and never written.
func checkReadOnly(t *testing.T, path string, content []byte, want verdict) {
	t.Helper()
	l := openTest(t, path, func(o *Options) { o.ReadDamaged = true })
	if !errors.Is(l.Damage(), ErrCorrupt) || l.Head().Seq != want.records {
		t.Fatalf("damage %v, head %v", l.Damage(), l.Head())
	}
	if _, err := l.Append(context.Background(), l.Head(), draft("next")); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("append to a damaged log: %v", err)
	}
	if !bytes.Equal(readFile(t, path), content) {
		t.Fatal("the damaged file was changed")
	}
}

func checkQuarantine(t *testing.T, path string, torn []byte, want bool) {
	t.Helper()
	kept, err := filepath.Glob(filepath.Join(filepath.Dir(path), "quarantine", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if !want {
		if len(kept) != 0 {
			t.Fatalf("quarantined %v", kept)
		}
		return
	}
	if len(kept) != 1 || !bytes.Equal(readFile(t, kept[0]), torn) {
		t.Fatalf("quarantine holds %v, not the torn bytes alone", kept)
	}
}

// A crash can leave any beginning of a record. All whole records live, the torn bytes are kept.
func TestCutAtEveryByte(t *testing.T) {
	lines := makeLog(t, logPath(t), 3)
	whole := join(lines[:2]...)
	last := lines[2]
	for cut := 1; cut < len(last)-1; cut++ {
		// The repair costs a dozen fsyncs; all of this only depends on the bytes being a tear.
		if cut > 20 && cut < len(last)-20 && cut%8 != 0 {
			w := &walk{src: bytes.NewReader(join(whole, last[:cut])), size: int64(len(whole) + cut)}
			if err := w.run(context.Background()); err != nil || w.tail == nil || w.tail.offset != int64(len(whole)) || w.at.line != 2 {
				t.Errorf("cut at %d: %v, tail %+v behind record %d", cut, err, w.tail, w.at.line)
			}
			continue
		}
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			checkVerdict(t, join(whole, last[:cut]), verdict{StatusTorn, 2, ReasonTornTail, 3})
		})
	}
	t.Run("only the LF is missing", func(t *testing.T) {
		checkVerdict(t, join(whole, last[:len(last)-1]), verdict{StatusClean, 3, "", 0})
	})
	t.Run("nothing is missing", func(t *testing.T) {
		checkVerdict(t, join(whole, last), verdict{StatusClean, 3, "", 0})
	})
}

func TestEndsOfALog(t *testing.T) {
	lines := makeLog(t, logPath(t), 6)
	whole := join(lines[:4]...)
	last := lines[4]
	nul := func(n int) []byte { return make([]byte, n) }
	torn := verdict{StatusTorn, 4, ReasonTornTail, 5}
	kept := verdict{StatusTorn, 5, ReasonTornTail, 5} // the last record stays, whoever knows of it
	tests := map[string]struct {
		content []byte
		want    verdict
	}{
		"empty":                           {nil, verdict{StatusClean, 0, "", 0}},
		"one NUL":                         {join(whole, nul(1)), torn},
		"4096 NULs":                       {join(whole, nul(4096)), torn},
		"a million NULs":                  {join(whole, nul(1e6)), torn},
		"more NULs than a record can be":  {join(whole, nul(maxLine+100)), torn},
		"NULs only":                       {nul(10), verdict{StatusTorn, 0, ReasonTornTail, 1}},
		"NULs, then a record on the line": {join(whole, nul(16), last), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"the last record NULs, LF kept":   {join(whole, nul(len(last)-1), []byte("\n")), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"too long a line with its LF":     {join(whole, bytes.Repeat([]byte("x"), maxLine+1), []byte("\n")), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"half a record with a LF":         {join(whole, last[:60], []byte("\n")), torn},
		"a record glued to half of one":   {join(whole, last[:60], last), torn},
		"the next record glued to one":    {join(whole, last[:len(last)-1], lines[5]), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"a wrong record without LF":       {join(whole, bytes.Replace(last[:len(last)-1], []byte("drafter"), []byte("drifter"), 1)), torn},
		"an earlier record without LF":    {join(whole, bytes.TrimSuffix(lines[1], []byte("\n"))), torn},
		"junk in the place of a LF":       {join(whole, last[:len(last)-1], []byte("\x0b")), kept},
		"NULs in the place of a LF":       {join(whole, last[:len(last)-1], nul(4096)), kept},
		"very many NULs in its place":     {join(whole, last[:len(last)-1], nul(maxLine+100)), kept},
		"a tear in the place of a LF":     {join(whole, last[:len(last)-1], lines[5][:60]), kept},
		"a record twice without LF":       {join(whole, last[:len(last)-1], last[:len(last)-1]), kept},
		"a first record and junk":         {join(lines[0][:len(lines[0])-1], []byte("x")), verdict{StatusTorn, 1, ReasonTornTail, 1}},
		"a record twice in one line":      {join(whole, last[:len(last)-1], last), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"a record and junk in one line":   {join(whole, last[:len(last)-1], []byte("junk\n")), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"a record and a tear with a LF":   {join(whole, last[:len(last)-1], lines[5][:60], []byte("\n")), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"a blank line":                    {join(whole, []byte("\n")), verdict{StatusCorrupt, 4, ReasonMalformed, 5}},
		"half a record before others":     {join(lines[0], lines[1][:40], []byte("\n"), lines[1], lines[2]), verdict{StatusCorrupt, 1, ReasonMalformed, 2}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { checkVerdict(t, test.content, test.want) })
	}
}

func TestDamage(t *testing.T) {
	lines := makeLog(t, logPath(t), 10)
	edit := func(i int, old, replacement string) []byte {
		changed := append([][]byte(nil), lines...)
		changed[i] = bytes.Replace(lines[i], []byte(old), []byte(replacement), 1)
		if bytes.Equal(changed[i], lines[i]) {
			t.Fatalf("line %d has no %q", i+1, old)
		}
		return join(changed...)
	}
	reseal := func(i int, change func(map[string]any)) []byte {
		changed := append([][]byte(nil), lines...)
		changed[i] = resealed(t, lines[i], change)
		return join(changed...)
	}
	at3 := func(reason Reason) verdict { return verdict{StatusCorrupt, 2, reason, 3} }
	at4 := func(reason Reason) verdict { return verdict{StatusCorrupt, 3, reason, 4} }
	tests := map[string]struct {
		content []byte
		want    verdict
	}{
		"one character":          {edit(2, "key-3", "key-4"), at3(ReasonHashMismatch)},
		"broken syntax":          {edit(2, `"task"`, `"task`), at3(ReasonMalformed)},
		"a space":                {edit(2, `,"task"`, `, "task"`), at3(ReasonNotCanonical)},
		"CRLF":                   {edit(2, "\n", "\r\n"), at3(ReasonNotCanonical)},
		"byte order mark":        {edit(2, `{"action_key"`, "\ufeff{\"action_key\""), at3(ReasonMalformed)},
		"key twice":              {edit(2, `"task":"t"`, `"task":"t","task":"t"`), at3(ReasonDuplicateKey)},
		"key twice in payload":   {edit(2, `"reason":"timeout"`, `"reason":"timeout","reason":"x"`), at3(ReasonDuplicateKey)},
		"lone surrogate":         {edit(2, "key-3", `\ud800`), at3(ReasonMalformed)},
		"integer beyond 2^53":    {edit(2, `"reason":"timeout"`, `"reason":9007199254740993`), at3(ReasonMalformed)},
		"not finite":             {edit(2, `"reason":"timeout"`, `"reason":1e999`), at3(ReasonMalformed)},
		"escape spelt otherwise": {edit(2, "key-3", `k\u0065y-3`), at3(ReasonNotCanonical)},
		"an array":               {join(lines[0], lines[1], []byte("[]\n"), lines[3]), at3(ReasonMalformed)},
		"other algorithm":        {reseal(2, func(m map[string]any) { m["alg"] = "sha512/jcs" }), at3(ReasonBadAlg)},
		"no algorithm":           {reseal(2, func(m map[string]any) { delete(m, "alg") }), at3(ReasonBadAlg)},
		"member of no format":    {reseal(2, func(m map[string]any) { m["extra"] = 1 }), at3(ReasonSchema)},
		"no event":               {reseal(2, func(m map[string]any) { delete(m, "event") }), at3(ReasonSchema)},
		"empty task":             {reseal(2, func(m map[string]any) { m["task"] = "" }), at3(ReasonSchema)},
		"payload no object":      {reseal(2, func(m map[string]any) { m["payload"] = "x" }), at3(ReasonSchema)},
		"actor without a kind":   {reseal(2, func(m map[string]any) { m["actor"] = "bob" }), at3(ReasonSchema)},
		"seq a string":           {reseal(2, func(m map[string]any) { m["seq"] = "3" }), at3(ReasonSchema)},
		"seq zero":               {reseal(2, func(m map[string]any) { m["seq"] = 0 }), at3(ReasonSchema)},
		"time no time":           {reseal(2, func(m map[string]any) { m["ts"] = "yesterday" }), at3(ReasonSchema)},
		"hash in capitals":       {edit(2, `"hash":"`, `"hash":"A`), at3(ReasonSchema)},
		"line deleted":           {join(append(append([][]byte{}, lines[:2]...), lines[3:]...)...), at3(ReasonSeqGap)},
		"first line deleted":     {join(lines[1:]...), verdict{StatusCorrupt, 0, ReasonSeqGap, 1}},
		"line doubled":           {join(append(append(append([][]byte{}, lines[:3]...), lines[2]), lines[3:]...)...), at4(ReasonSeqDuplicate)},
		"lines swapped":          {join(lines[0], lines[1], lines[3], lines[2], lines[4]), at3(ReasonSeqGap)},
		"blank line":             {join(lines[0], lines[1], []byte("\n"), lines[2]), at3(ReasonMalformed)},
		"NULs between":           {join(lines[0], lines[1], make([]byte, 30), lines[2], lines[3]), at3(ReasonMalformed)},
		"another predecessor":    {reseal(3, func(m map[string]any) { m["prev"] = strings.Repeat("0", 64) }), at4(ReasonPrevMismatch)},
		"no predecessor":         {reseal(3, func(m map[string]any) { m["prev"] = nil }), at4(ReasonPrevMismatch)},
		"genesis with one":       {reseal(0, func(m map[string]any) { m["prev"] = strings.Repeat("0", 64) }), verdict{StatusCorrupt, 0, ReasonNotGenesis, 1}},
		"resealed":               {reseal(2, func(m map[string]any) { m["task"] = "other" }), at4(ReasonPrevMismatch)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { checkVerdict(t, test.content, test.want) })
	}
}

// No flipped bit of a log is ever overlooked, and none before the last record is taken for a tear.
func TestEveryBitFlip(t *testing.T) {
	path := logPath(t)
	lines := makeLog(t, path, 3)
	content := join(lines...)
	lastLine := len(content) - len(lines[2])
	flipped := make([]byte, len(content))
	for i := range content {
		for bit := range 8 {
			copy(flipped, content)
			flipped[i] ^= 1 << bit
			w := &walk{src: bytes.NewReader(flipped), size: int64(len(flipped)), path: path}
			err := w.run(context.Background())
			if err == nil && (w.tail == nil || i < lastLine) {
				t.Fatalf("bit %d of byte %d (%q) went unnoticed", bit, i, content[i])
			}
			whole := bytes.Count(content[:i], []byte("\n"))
			if i == len(content)-1 {
				whole++ // only its LF is hit: the record stays
			}
			if int(w.at.line) != whole {
				t.Fatalf("bit %d of byte %d: %d records counted", bit, i, w.at.line)
			}
		}
	}
}

// Whole records cut off the end are a perfect shorter chain; a noted head tells.
func TestVerifyWithAHead(t *testing.T) {
	path := logPath(t)
	lines := makeLog(t, path, 4)
	head := verify(t, path).Head
	var middle struct{ Hash string }
	if err := json.Unmarshal(lines[1], &middle); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		content []byte
		head    Head
		want    Status
	}{
		"the last":           {join(lines...), head, StatusClean},
		"an earlier one":     {join(lines...), Head{2, middle.Hash}, StatusClean},
		"the empty log's":    {join(lines...), Head{}, StatusClean},
		"another hash":       {join(lines...), Head{2, head.Hash}, StatusCorrupt},
		"one record cut off": {join(lines[:3]...), head, StatusCorrupt},
		"all cut off":        {nil, head, StatusCorrupt},
		"cut and torn":       {join(lines[0], lines[1][:9]), head, StatusCorrupt},
		"torn behind it":     {join(append(lines[:4:4], []byte("{"))...), head, StatusTorn},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			writeFile(t, path, test.content)
			report, err := Verify(context.Background(), path, VerifyOptions{Head: &test.head})
			if err != nil || report.Status != test.want {
				t.Fatalf("%+v, %v; want %s", report, err, test.want)
			}
			if (report.Reason == ReasonHeadMismatch) != (test.want == StatusCorrupt) || report.HeadSeen != (test.want != StatusCorrupt) {
				t.Errorf("%+v", report)
			}
			if (report.Err() == nil) != (test.want == StatusClean) {
				t.Errorf("Err() = %v", report.Err())
			}
		})
	}
}

func TestVerifyWhatIsNoLog(t *testing.T) {
	if _, err := Verify(context.Background(), filepath.Join(t.TempDir(), "none"), VerifyOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := Verify(context.Background(), t.TempDir(), VerifyOptions{}); err == nil {
		t.Error("a directory verifies")
	}
}

// A long log is checked by several goroutines; damage must be found just the same wherever it is.
func TestVerifyInManySegments(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	big := map[string]any{"action_key": "k", "reason": "timeout", "pad": strings.Repeat("é\"", 30_000)}
	const records = 60
	for range records {
		if _, err := l.Append(context.Background(), l.Head(), Draft{Event: "x", Actor: "agent:a", Payload: big}); err != nil {
			t.Fatal(err)
		}
	}
	lines := splitLines(readFile(t, path))
	if total := len(join(lines...)); total < 4*segmentSize {
		t.Fatalf("the log has only %d bytes", total)
	}
	var done int64
	report, err := Verify(context.Background(), path, VerifyOptions{Progress: func(d, _ int64) { done = d }})
	if err != nil || report.Status != StatusClean || report.Records != records || done != int64(len(join(lines...))) {
		t.Fatalf("%+v, %v, progress %d", report, err, done)
	}
	h := &recorder{}
	openTest(t, path, func(o *Options) { o.Fold = h })
	if len(h.records) != records {
		t.Fatalf("%d records folded", len(h.records))
	}
	for _, i := range []int{0, 1, 17, 18, 19, 35, 36, 58, 59} {
		changed := append([][]byte(nil), lines...)
		changed[i] = resealed(t, lines[i], func(m map[string]any) { m["task"] = "x" })
		bad := i + 1
		want := verdict{StatusCorrupt, int64(bad), ReasonPrevMismatch, int64(bad + 1)}
		if bad == records {
			want = verdict{StatusClean, records, "", 0}
		}
		writeFile(t, path, join(changed...))
		got := verify(t, path)
		if got.Status != want.status || got.Records != want.records || got.Reason != want.reason || got.Line != want.line {
			t.Errorf("record %d resealed: %+v, want %+v", bad, got, want)
		}
	}
}

// What an older writer of the format wrote is read: its events, amounts and time stamps.
func TestForeignRecords(t *testing.T) {
	path := logPath(t)
	var content []byte
	prev := any(nil)
	for i, m := range []map[string]any{
		{"event": "task.registered", "actor": "system:gate", "task": "t1", "payload": map[string]any{"amount": "12.50"}},
		{"event": "policy.updated", "actor": "human:root", "payload": map[string]any{"amount": 12.5, "nested": []any{nil, true}}},
		{"event": "something.nobody.knows", "actor": "agent:x", "channel": "slack", "ts": "2026-08-04T11:14:02+02:00"},
	} {
		if m["ts"] == nil {
			m["ts"] = "2026-08-04T09:14:02.000Z"
		}
		m["alg"], m["seq"], m["prev"] = algorithm, i+1, prev
		m["hash"] = digest(t, m)
		prev = m["hash"]
		content = append(append(content, canonicalOf(t, m)...), '\n')
	}
	writeFile(t, path, content)
	h := &recorder{}
	l := openTest(t, path, func(o *Options) { o.Fold = h })
	mustAppend(t, l, "ours")
	if got := h.records[2]; got.Channel != "slack" || !got.TS.Equal(testClock) {
		t.Errorf("%+v", got)
	}
	if !bytes.HasPrefix(readFile(t, path), content) {
		t.Error("foreign records were touched")
	}
	wantClean(t, path, 4)
}
