package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// tempName is made when it is first needed: most processes never sweep.
var tempName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\..+\.tmp-[0-9a-f]{16}$`) })

// Sweep removes from dir the temporary files that writers killed in the middle of their work have left: those named by [TempName] and
// not changed since before. A writer at work has its file for moments, so any time well in the past will do. It answers how many it
// removed; a directory that is not there has none.
func (f FS) Sweep(op, dir string, before time.Time) (removed int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var failed []error
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || !tempName().MatchString(entry.Name()) || !info.ModTime().Before(before) {
			continue // what has gone meanwhile is gone
		}
		path := filepath.Join(dir, entry.Name())
		err = f.Before(op+".remove", path)
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil {
			removed++
		} else if !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return removed, errors.Join(failed...)
}
