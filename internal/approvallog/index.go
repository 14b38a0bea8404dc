package approvallog

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"sync"

	"github.com/approvald/approvald/internal/durable"
)

// The file of an index: blocks of 4 KiB. The first is the header, the others hold entries in rising
// order, all full but the last. Numbers are big-endian.
//
//	header: checksum 4, magic 16, id 16, entries 8, from: offset 8, seq 8, hash 32, to: the same
//	block:  checksum 4, entries in it 2, zero 10, entries: key hash 8, place 8
//
// A block's checksum (CRC-32C) covers the id and the block's number too, so that no block of another
// file, or of another place in this one, passes for it.
const (
	indexMagic     = "approvald index1"
	indexBlockSize = 4096
	indexHead      = 16
	indexEntrySize = 16
	indexPerBlock  = (indexBlockSize - indexHead) / indexEntrySize
	// maxIndexEntries keeps the numbers of blocks below 2^32.
	maxIndexEntries = 1 << 39
)

// errIndexDamaged: an index file does not hold what was written. The log is read instead.
var errIndexDamaged = errors.New("the index is damaged")

// castagnoli is made when it is first needed: that takes as long as to append a record.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// indexID names one index file; its bytes are random.
type indexID [16]byte

// mark is a place between two records of a log.
type mark struct {
	offset int64
	head   Head // of what stands before
}

// indexEntry says that a record under a key stands at a place. Different keys may have one hash, so
// who looks up must look at the records too.
type indexEntry struct {
	hash uint64
	// at is the record's offset, twice, plus 1 when nothing of the key that stands before the record
	// matters any more.
	at uint64
}

func makeEntry(key string, offset int64, fresh bool) indexEntry {
	return entryAt(keyHash(key), offset, fresh)
}

func entryAt(hash uint64, offset int64, fresh bool) indexEntry {
	e := indexEntry{hash: hash, at: uint64(offset) << 1}
	if fresh {
		e.at |= 1
	}
	return e
}

func (e indexEntry) offset() int64 { return int64(e.at >> 1) }
func (e indexEntry) fresh() bool   { return e.at&1 != 0 }

func compareEntries(a, b indexEntry) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.at, b.at))
}

// keyHash is the start of the key's SHA-256. Keys are chosen by askers: with a weaker function one of
// them could make many keys of one hash, and with them every look-up of those slow.
func keyHash(key string) uint64 {
	var buf [64]byte // keys are short: no copy on the heap
	sum := sha256.Sum256(append(buf[:0], key...))
	return binary.BigEndian.Uint64(sum[:])
}

// hashes remembers what keyHash gave of late: a key's records often stand close together. It compares
// keys, so it never gives another key's hash; keys that were chosen to meet in one place only cost what
// they cost without it.
type hashes [256]struct {
	key  string
	hash uint64
}

func (h *hashes) of(key string) uint64 {
	// FNV-1a, of the end: keys often begin alike.
	slot := uint32(2166136261)
	for _, c := range []byte(key[max(0, len(key)-16):]) {
		slot = (slot ^ uint32(c)) * 16777619
	}
	known := &h[(slot^slot>>16)%uint32(len(h))]
	if known.key != key {
		known.key, known.hash = key, keyHash(key)
	}
	return known.hash
}

func newIndexID() (id indexID) {
	rand.Read(id[:])
	return id
}

// writeIndex writes the entries, which must come in rising order, to a new file at path. When it
// returns without an error the file is complete and synced and so is its name, else it is not there.
func writeIndex(fs durable.FS, path string, id indexID, from, to mark, entries iter.Seq2[indexEntry, error]) (err error) {
	temp := durable.TempName(path)
	f, err := fs.OpenFile("index", temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = fs.Before("index.rename", path)
		}
		if err == nil {
			err = os.Rename(temp, path)
		}
		if err != nil {
			os.Remove(temp)
			return
		}
		if err = fs.SyncDir("index", filepath.Dir(path)); err != nil {
			os.Remove(path)
		}
	}()
	w := &indexWriter{file: f, id: id, buf: make([]byte, indexBlockSize, 64*indexBlockSize)}
	for e, err := range entries {
		if err != nil {
			return err
		}
		if err := w.add(e); err != nil {
			return err
		}
	}
	if err := w.finish(); err != nil {
		return err
	}
	if _, err := f.WriteAt(indexHeader(id, w.entries, from, to), 0); err != nil {
		return err
	}
	return f.Sync()
}

// indexWriter gathers blocks and writes many of them at a time. The header's place is left zero.
type indexWriter struct {
	file    *durable.File
	id      indexID
	buf     []byte // begins with the blocks that were not written yet
	block   []byte // the one that is being filled
	number  uint32 // of the last block
	written int64  // bytes
	entries uint64
}

func (w *indexWriter) add(e indexEntry) error {
	if len(w.block) == indexBlockSize {
		if err := w.seal(); err != nil {
			return err
		}
	}
	if w.block == nil {
		w.block = make([]byte, indexHead, indexBlockSize)
	}
	w.block = binary.BigEndian.AppendUint64(w.block, e.hash)
	w.block = binary.BigEndian.AppendUint64(w.block, e.at)
	w.entries++
	return nil
}

func (w *indexWriter) seal() error {
	if w.block == nil {
		return nil
	}
	w.number++
	binary.BigEndian.PutUint16(w.block[4:], uint16((len(w.block)-indexHead)/indexEntrySize))
	w.block = w.block[:indexBlockSize] // beyond its length a new block is zero
	sealBlock(w.block, w.id, w.number)
	w.buf = append(w.buf, w.block...)
	w.block = make([]byte, indexHead, indexBlockSize)
	if len(w.buf) < cap(w.buf) {
		return nil
	}
	return w.flush()
}

func (w *indexWriter) flush() error {
	n, err := w.file.Extend(w.buf, w.written)
	w.buf, w.written = w.buf[:0], w.written+int64(n)
	return err
}

func (w *indexWriter) finish() error {
	if len(w.block) > indexHead {
		if err := w.seal(); err != nil {
			return err
		}
	}
	return w.flush()
}

func indexHeader(id indexID, entries uint64, from, to mark) []byte {
	b := append(make([]byte, 4, indexBlockSize), indexMagic...)
	b = append(b, id[:]...)
	b = binary.BigEndian.AppendUint64(b, entries)
	for _, m := range [...]mark{from, to} {
		b = binary.BigEndian.AppendUint64(b, uint64(m.offset))
		b = binary.BigEndian.AppendUint64(b, uint64(m.head.Seq))
		hash, _ := hex.DecodeString(m.head.Hash)
		b = append(b, hash...)
		b = b[:len(b)+sha256.Size-len(hash)] // an empty log has no hash
	}
	b = b[:indexBlockSize]
	sealBlock(b, id, 0)
	return b
}

func sealBlock(block []byte, id indexID, number uint32) {
	binary.BigEndian.PutUint32(block, blockSum(block, id, number))
}

func blockSum(block []byte, id indexID, number uint32) uint32 {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], number)
	sum := crc32.Update(0, castagnoli(), id[:])
	sum = crc32.Update(sum, castagnoli(), n[:])
	return crc32.Update(sum, castagnoli(), block[4:])
}

// indexFile is an open index. Its methods may be called from any goroutine.
type indexFile struct {
	file     *os.File
	id       indexID
	entries  uint64
	blocks   uint32
	from, to mark
}

// openIndex opens the index at path. It is [errIndexDamaged] when the header or the size is not what
// was written; blocks are checked when they are read.
func openIndex(path string) (*indexFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	x, err := readIndexHeader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	x.file = f
	return x, nil
}

func readIndexHeader(f *os.File) (*indexFile, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var b [indexBlockSize]byte
	if err := readFull(f, b[:], 0); err != nil {
		return nil, fmt.Errorf("%w: %w", errIndexDamaged, err)
	}
	x, err := parseIndexHeader(b[:])
	if err == nil && info.Size() != int64(x.blocks+1)*indexBlockSize {
		err = fmt.Errorf("%w: it has %d bytes", errIndexDamaged, info.Size())
	}
	return x, err
}

func parseIndexHeader(b []byte) (*indexFile, error) {
	x := &indexFile{}
	copy(x.id[:], b[20:36])
	if string(b[4:20]) != indexMagic || binary.BigEndian.Uint32(b) != blockSum(b, x.id, 0) {
		return nil, fmt.Errorf("%w: its header is not what was written", errIndexDamaged)
	}
	if x.entries = binary.BigEndian.Uint64(b[36:]); x.entries > maxIndexEntries {
		return nil, fmt.Errorf("%w: it claims %d entries", errIndexDamaged, x.entries)
	}
	x.blocks = uint32((x.entries + indexPerBlock - 1) / indexPerBlock)
	rest := b[44:]
	for _, m := range [...]*mark{&x.from, &x.to} {
		m.offset = int64(binary.BigEndian.Uint64(rest))
		m.head.Seq = int64(binary.BigEndian.Uint64(rest[8:]))
		if m.head.Seq > 0 {
			m.head.Hash = hex.EncodeToString(rest[16 : 16+sha256.Size])
		}
		rest = rest[16+sha256.Size:]
	}
	return x, nil
}

func (x *indexFile) close() { x.file.Close() }

// block reads one block's entries into buf, numbers from 0.
func (x *indexFile) block(number uint32, buf *[indexPerBlock]indexEntry) ([]indexEntry, error) {
	var b [indexBlockSize]byte
	if err := readFull(x.file, b[:], int64(number+1)*indexBlockSize); err != nil {
		return nil, fmt.Errorf("%w: %w", errIndexDamaged, err)
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	want := indexPerBlock
	if number == x.blocks-1 {
		want = int(x.entries - uint64(number)*indexPerBlock)
	}
	if n != want || binary.BigEndian.Uint32(b[:]) != blockSum(b[:], x.id, number+1) {
		return nil, fmt.Errorf("%w: block %d is not what was written", errIndexDamaged, number)
	}
	for i := range n {
		at := indexHead + i*indexEntrySize
		buf[i] = indexEntry{hash: binary.BigEndian.Uint64(b[at:]), at: binary.BigEndian.Uint64(b[at+8:])}
	}
	return buf[:n], nil
}

// lookup appends the entries of the hash, in the order of their places.
func (x *indexFile) lookup(hash uint64, found []indexEntry) ([]indexEntry, error) {
	var buf [indexPerBlock]indexEntry
	number, err := x.firstBlock(hash, &buf)
	for ; err == nil && number < x.blocks; number++ {
		var entries []indexEntry
		if entries, err = x.block(number, &buf); err != nil {
			break
		}
		for _, e := range entries {
			if e.hash == hash {
				found = append(found, e)
			}
		}
		if entries[len(entries)-1].hash > hash {
			break
		}
	}
	return found, err
}

// firstBlock returns the first block that may hold the hash: the last that begins below it, else the
// first of all.
func (x *indexFile) firstBlock(hash uint64, buf *[indexPerBlock]indexEntry) (uint32, error) {
	low, high := uint32(0), x.blocks // blocks before low begin below the hash, those from high on do not
	probe := func(number uint32) error {
		entries, err := x.block(number, buf)
		if err != nil {
			return err
		}
		if entries[0].hash < hash {
			low = number + 1
		} else {
			high = number
		}
		return nil
	}
	// Hashes are spread evenly, so the value says where the block is, but for about four standard
	// deviations.
	guess, _ := bits.Mul64(hash, uint64(x.blocks))
	spread := uint64(2 + 2*math.Sqrt(float64(x.entries))/indexPerBlock)
	if guess > spread {
		if err := probe(uint32(guess - spread)); err != nil {
			return 0, err
		}
	}
	if guess+spread < uint64(x.blocks) && high == x.blocks {
		if err := probe(uint32(guess + spread)); err != nil {
			return 0, err
		}
	}
	for low < high {
		if err := probe(low + (high-low)/2); err != nil {
			return 0, err
		}
	}
	return max(low, 1) - 1, nil
}

// all yields every entry in rising order.
func (x *indexFile) all() iter.Seq2[indexEntry, error] {
	return func(yield func(indexEntry, error) bool) {
		var buf [indexPerBlock]indexEntry
		for number := range x.blocks {
			entries, err := x.block(number, &buf)
			if err != nil {
				yield(indexEntry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}
