package lease

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ResolveHome turns a gate home's path into the one spelling under which the
// gate is known: absolute, without symlinks, dots and doubled slashes. The end
// of the path need not exist yet. A leading "~" is refused: it is what a shell
// would have replaced, and taking it as a name would make a second gate.
func ResolveHome(home string) (string, error) {
	switch {
	case home == "":
		return "", unavailable(home, "the gate has no home", "set home in the configuration", nil)
	case strings.HasPrefix(home, "~"):
		return "", unavailable(home, "a leading ~ is not expanded", "write the path out", nil)
	}
	abs, err := filepath.Abs(home)
	if err != nil {
		return "", unavailable(home, "the working directory cannot be read", "give an absolute path", err)
	}
	resolved, err := resolve(abs)
	if err != nil {
		return "", unavailable(home, "the path cannot be resolved", "check its directories and links", err)
	}
	return resolved, nil
}

// resolve follows the links of the part of the path that exists.
func resolve(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return resolved, err
	}
	if info, lerr := os.Lstat(path); lerr == nil {
		if info.Mode()&fs.ModeSymlink == 0 {
			return resolve(path) // somebody made it meanwhile
		}
		return "", err // a link to nowhere
	}
	parent := filepath.Dir(path)
	if parent == path {
		return "", err
	}
	if parent, err = resolve(parent); err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(path)), nil
}

// existing returns the nearest directory of the path that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}
