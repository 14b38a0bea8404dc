package approvallog

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/approvald/approvald/internal/durable"
)

// testIndex writes an index of n keys with up to three places each, and returns what is in it.
func testIndex(t testing.TB, path string, n int) map[uint64][]indexEntry {
	t.Helper()
	want := make(map[uint64][]indexEntry)
	mem := &memIndex{}
	for i := range n {
		for j := range 1 + i%3 {
			e := makeEntry(fmt.Sprint("key-", i), int64(j*1_000_000+i), j == 0)
			want[e.hash] = append(want[e.hash], e)
			mem.add(e)
		}
	}
	to := mark{offset: 12345, head: Head{Seq: 99, Hash: fmt.Sprintf("%064x", 7)}}
	if err := writeIndex(durable.FS{}, path, newIndexID(), mark{}, to, mem.all()); err != nil {
		t.Fatal(err)
	}
	return want
}

func TestIndexFindsAllOfAKeyAndNothingElse(t *testing.T) {
	// Sizes around those of a block, and large enough for several steps of the search.
	for _, n := range []int{0, 1, 2, 120, 127, 128, 200, 255, 5_000, 40_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "index-1")
			want := testIndex(t, path, n)
			x, err := openIndex(path)
			if err != nil {
				t.Fatal(err)
			}
			defer x.close()
			if x.to.offset != 12345 || x.to.head.Seq != 99 || x.to.head.Hash != fmt.Sprintf("%064x", 7) || x.from != (mark{}) {
				t.Errorf("from %v to %v", x.from, x.to)
			}
			for hash, entries := range want {
				got, err := x.lookup(hash, nil)
				if err != nil || !slices.Equal(got, entries) {
					t.Fatalf("%x: %v, %v, want %v", hash, got, err, entries)
				}
			}
			for range 1000 {
				hash := rand.Uint64()
				if got, err := x.lookup(hash, nil); err != nil || len(got) != len(want[hash]) {
					t.Fatalf("%x: %v, %v", hash, got, err)
				}
			}
			all := 0
			for e, err := range x.all() {
				if err != nil || !slices.Contains(want[e.hash], e) {
					t.Fatalf("%v, %v", e, err)
				}
				all++
			}
			if uint64(all) != x.entries {
				t.Errorf("%d entries, the header says %d", all, x.entries)
			}
		})
	}
}

func TestIndexWithOneHashInManyBlocks(t *testing.T) {
	mem := &memIndex{}
	for i := range 1000 {
		mem.add(indexEntry{hash: 7, at: uint64(i)})
		mem.add(indexEntry{hash: 1 << 63, at: uint64(i)})
	}
	path := filepath.Join(t.TempDir(), "index-1")
	if err := writeIndex(durable.FS{}, path, newIndexID(), mark{}, mark{}, mem.all()); err != nil {
		t.Fatal(err)
	}
	x, err := openIndex(path)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	for hash, want := range map[uint64]int{0: 0, 7: 1000, 8: 0, 1 << 63: 1000, 1<<64 - 1: 0} {
		if got, err := x.lookup(hash, nil); err != nil || len(got) != want {
			t.Errorf("%x: %d entries, %v, want %d", hash, len(got), err, want)
		}
		if got := mem.lookup(hash, nil); len(got) != want || !slices.IsSortedFunc(got, compareEntries) {
			t.Errorf("%x in memory: %d entries, want %d", hash, len(got), want)
		}
	}
}

func TestMergedIndexesAreInOrder(t *testing.T) {
	for parts := range 5 {
		var all []iter.Seq2[indexEntry, error]
		var want []indexEntry
		for p := range parts {
			mem := &memIndex{}
			for i := range 100 * p {
				e := makeEntry(fmt.Sprint(i), int64(1000*p+i), false)
				mem.add(e)
				want = append(want, e)
			}
			all = append(all, mem.all())
		}
		slices.SortFunc(want, compareEntries)
		var got []indexEntry
		for e, err := range merged(all) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e)
		}
		if !slices.Equal(want, got) {
			t.Errorf("%d parts: %d entries, want %d in order", parts, len(got), len(want))
		}
	}
}

// No bit of an index can change unnoticed.
func TestIndexNoticesEveryFlippedBit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index-1")
	testIndex(t, path, 300)
	text := readFile(t, path)
	other := filepath.Join(filepath.Dir(path), "index-2")
	testIndex(t, other, 300)
	damages := map[string][]byte{
		"a block of another index": slices.Concat(text[:2*indexBlockSize], readFile(t, other)[2*indexBlockSize:]),
		"two blocks exchanged":     slices.Concat(text[:indexBlockSize], text[2*indexBlockSize:], text[indexBlockSize:2*indexBlockSize]),
		"short":                    text[:len(text)-indexBlockSize],
		"long":                     append(slices.Clone(text), make([]byte, indexBlockSize)...),
		"nothing":                  nil,
		"zero":                     make([]byte, len(text)),
	}
	for i := 0; i < len(text); i += 37 {
		flipped := slices.Clone(text)
		flipped[i] ^= 1 << (i % 8)
		damages[fmt.Sprint("bit in byte ", i)] = flipped
	}
	for name, damaged := range damages {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		x, err := openIndex(path)
		if err == nil {
			for _, err = range x.all() {
				if err != nil {
					break
				}
			}
			x.close()
		}
		if !errors.Is(err, errIndexDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzIndex reads any blocks whose checksums were made right: what is in them may be nonsense, but is
// never more than that.
func FuzzIndex(f *testing.F) {
	path := filepath.Join(f.TempDir(), "index-1")
	testIndex(f, path, 300)
	f.Add(readFile(f, path), uint64(1)<<63)
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, text []byte, hash uint64) {
		text = text[:min(len(text), 4*indexBlockSize)]
		text = append(text, make([]byte, -len(text)&(indexBlockSize-1))...)
		for i := 0; i < len(text); i += indexBlockSize {
			block := text[i : i+indexBlockSize]
			if i == 0 {
				copy(block[4:], indexMagic)
			}
			var id indexID
			copy(id[:], text[20:36])
			binary.BigEndian.PutUint32(block, blockSum(block, id, uint32(i/indexBlockSize)))
		}
		path := filepath.Join(t.TempDir(), "index-1")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		x, err := openIndex(path)
		if err != nil {
			if !errors.Is(err, errIndexDamaged) {
				t.Fatal(err)
			}
			return
		}
		defer x.close()
		if uint64(len(text)) < x.entries*indexEntrySize {
			t.Fatalf("%d entries in %d bytes", x.entries, len(text))
		}
		found, err := x.lookup(hash, nil)
		if err != nil && !errors.Is(err, errIndexDamaged) {
			t.Fatal(err)
		}
		for _, e := range found {
			if e.hash != hash || e.offset() < 0 {
				t.Fatalf("looked for %x, found %v", hash, e)
			}
		}
		for range x.all() {
		}
	})
}

// FuzzSnapshot reads any text as a snapshot, with a right digest too.
func FuzzSnapshot(f *testing.F) {
	h := newTestHome(f, f.TempDir())
	h.append(f, someHistory())
	l, _ := h.open(f)
	defer l.Close()
	if err := l.WriteSnapshot(f.Context()); err != nil {
		f.Fatal(err)
	}
	f.Add(readFile(f, h.snapshot))
	f.Add([]byte("{}"))
	f.Add([]byte("\x00\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for i, text := range [][]byte{text, withDigest(text)} {
			s, err := parseSnapshot(text)
			if err != nil {
				if !errors.Is(err, errSnapshotDamaged) {
					t.Fatal(err)
				}
				continue
			}
			for _, x := range s.Indexes {
				if filepath.Dir(filepath.Join("dir", x.File)) != "dir" {
					t.Fatalf("the index %q is not beside the snapshot", x.File)
				}
			}
			writeFile(t, h.snapshot, text)
			again, q := h.open(t)
			if i == 0 { // nobody guesses a digest; a forger could leave a request out
				wantSameAnswers(t, again, q, someHistory())
			}
			again.Close()
		}
	})
}

// withDigest makes a snapshot's file of a text that may be none.
func withDigest(text []byte) []byte {
	sum := sha256.Sum256(text)
	return fmt.Appendf(nil, `{"sha256":"%x","snapshot":%s}`, sum, text)
}
