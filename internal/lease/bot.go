package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/procid"
)

// lockDirVariable names a directory for the bots' locks in place of the usual
// one: for containers that share one machine, and for tests.
const lockDirVariable = "APPROVALD_LOCK_DIR"

// BotLease keeps other gates of this machine off one bot.
type BotLease struct {
	mu sync.Mutex
	fd int // -1 once released
}

// botOwner is what the lock's file says about its holder. It is for people;
// the kernel lock decides.
type botOwner struct {
	Gate string `json:"gate"`
	PID  int    `json:"pid"`
}

// AcquireBot takes the machine's lock on a bot, which is known by its numeric
// id (from getMe) and the host of its API. It refuses with a *BotHeldError
// when another gate has it and with an *UnavailableError when the lock cannot
// be had at all. The lock lies in $APPROVALD_LOCK_DIR, else, for root, in
// /run/lock/approvald, else in approvald of the user's runtime directory
// ($XDG_RUNTIME_DIR or /run/user/UID), else in a directory of the user's own
// under the system's temporary one: it excludes the gates of
// one user, and containers only when they share that directory.
func AcquireBot(botID int64, apiBase, gateHome string) (*BotLease, error) {
	return acquireBot(botID, apiBase, gateHome, realSystem())
}

func acquireBot(botID int64, apiBase, gateHome string, sys *system) (*BotLease, error) {
	home, err := ResolveHome(gateHome)
	if err != nil {
		return nil, err
	}
	dir, err := botLockDir()
	if err != nil {
		return nil, err
	}
	path := botLockPath(dir, botID, apiBase)
	k, err := lockBot(&taker{sys: sys, flockPath: path, daemonDir: dir}, botID)
	if err != nil {
		return nil, err
	}
	owner, err := json.Marshal(botOwner{Gate: home, PID: os.Getpid()})
	if err == nil {
		err = overwrite(k.fd, append(owner, '\n'))
	}
	if err != nil {
		k.close()
		return nil, unavailable(path, "the bot's lock cannot be written", hintFor(err), err)
	}
	return &BotLease{fd: k.fd}, nil
}

func botLockPath(dir string, botID int64, apiBase string) string {
	sum := sha256.Sum256([]byte(apiHost(apiBase)))
	return filepath.Join(dir, fmt.Sprintf("bot-%d-%s.lock", botID, hex.EncodeToString(sum[:4])))
}

// InspectBot tells which gate of this machine has the bot, as far as that can be seen without taking anything: nil
// when none is seen to have it. It makes nothing and writes nothing.
func InspectBot(botID int64, apiBase string) *BotHeldError {
	dir := os.Getenv(lockDirVariable)
	if dir == "" {
		dir = usualLockDir()
	}
	path := botLockPath(dir, botID, apiBase)
	// Another process's start or stop may be seen half-way: a lock that lasts is there the second time too.
	for attempt := 0; lockOwner(procid.Prober{}, path) != 0; attempt++ {
		if held := botHeld(botID, path); held.Gate != "" || attempt == rereads {
			return held
		}
		time.Sleep(rereadPause)
	}
	return nil
}

// Release gives the bot up. Calling it again does nothing. The file stays: a
// lock whose file is unlinked can be held twice.
func (b *BotLease) Release() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd < 0 {
		return nil
	}
	fd := b.fd
	b.fd = -1
	err := unix.Ftruncate(fd, 0)
	return errors.Join(err, unix.Close(fd))
}

// lockBot takes the bot's kernel lock or names who holds it. A holder that does
// not say who it is is on its way in or out, so it is looked at again.
func lockBot(t *taker, botID int64) (*kernelLock, error) {
	for attempt := 0; ; attempt++ {
		k, err := t.lockKernel()
		if !errors.Is(err, errBusy) {
			return k, err
		}
		if held := botHeld(botID, t.flockPath); held.Gate != "" || attempt == rereads {
			return nil, held
		}
		time.Sleep(rereadPause)
	}
}

func botHeld(botID int64, path string) *BotHeldError {
	e := &BotHeldError{Code: CodeBotOwned, BotID: botID, Path: path}
	var owner botOwner
	if data, err := readSmall(path); err == nil && json.Unmarshal(data, &owner) == nil {
		e.Gate, e.PID = owner.Gate, owner.PID
	}
	if e.PID == 0 {
		e.PID = lockOwner(procid.Prober{}, path)
	}
	return e
}

// overwrite replaces a file's content in place: the lock is the inode's, so no
// other file may take its name.
func overwrite(fd int, data []byte) error {
	if err := unix.Ftruncate(fd, 0); err != nil {
		return err
	}
	_, err := unix.Pwrite(fd, data, 0)
	return err
}

// userRuntimeDir is the user's runtime directory, empty when there is none. A
// process outside a session (cron, sudo) is not told of it, and must find the
// locks of those inside all the same. users is where the system keeps them.
func userRuntimeDir(users string) string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	dir := filepath.Join(users, strconv.Itoa(os.Getuid()))
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() {
		return ""
	}
	return dir
}

// usualLockDir is where the bots' locks lie when no variable names a directory.
func usualLockDir() string {
	switch runtimeDir := userRuntimeDir("/run/user"); {
	case os.Getuid() == 0:
		return "/run/lock/approvald"
	case runtimeDir != "":
		return filepath.Join(runtimeDir, "approvald")
	default:
		return filepath.Join(os.TempDir(), fmt.Sprintf("approvald-%d", os.Getuid()))
	}
}

// botLockDir returns the directory of the bots' locks, made and private.
func botLockDir() (string, error) {
	if dir := os.Getenv(lockDirVariable); dir != "" {
		return chosenLockDir(dir)
	}
	dir := usualLockDir()
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return "", unavailable(dir, "the directory of the bots' locks cannot be made", "set "+lockDirVariable+" to one that can", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", unavailable(dir, "the directory of the bots' locks cannot be examined", hintFor(err), err)
	}
	// Somebody else's directory under so predictable a name could hide one lock from another.
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() {
		return "", unavailable(dir, "the directory of the bots' locks belongs to somebody else or is a link",
			"set "+lockDirVariable+" to that directory to use it all the same, or to another that all gates of the bot use", nil)
	}
	return dir, nil
}

// chosenLockDir accepts a directory that was named on purpose, shared or not.
func chosenLockDir(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", unavailable(dir, "the directory of the bots' locks is not absolute", "set "+lockDirVariable+" to an absolute path", nil)
	}
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return "", unavailable(dir, "the directory of the bots' locks cannot be made", "set "+lockDirVariable+" to one that can", err)
	}
	return dir, nil
}

// apiHost is the part of an API's base address that tells bots of equal id
// apart: host and port in one spelling. All loopback addresses are this
// machine, where one port is one server in all but contrived cases.
func apiHost(base string) string {
	if base == "" {
		return "api.telegram.org:443"
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return strings.ToLower(base)
	}
	port := u.Port()
	switch {
	case port != "":
	case strings.EqualFold(u.Scheme, "http"):
		port = "80"
	default:
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		port = strconv.FormatUint(n, 10)
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.Unmap().String()
		if addr.Unmap().IsLoopback() {
			host = "localhost"
		}
	} else if strings.HasSuffix(host, ".localhost") { // RFC 6761
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
