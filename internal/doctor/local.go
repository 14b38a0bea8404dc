package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/transport"
)

func lookAtConfiguration(_ context.Context, p *patient) verdict {
	path, err := gate.FindConfig(p.o.Gate, p.o.Config)
	if err == nil {
		p.cfg, err = gate.LoadConfig(p.o.Gate, path)
	}
	if err != nil {
		return p.faulty(path, err)
	}
	if p.cfg.Transport.Mode == gate.ModeWebhook {
		if err := transport.ValidateWebhookURL(p.cfg.Transport.Webhook.URL); err != nil {
			return failed(path+": transport.webhook.url: "+err.Error(), edit(path, 0))
		}
	}
	return fine(fmt.Sprintf("%s, gate %s, %s, %s", path, p.o.Gate, p.cfg.Transport.Mode, count(len(p.cfg.Approvers), "approver")))
}

// faulty is the verdict on a configuration that cannot be read.
func (p *patient) faulty(path string, err error) verdict {
	what := strings.ReplaceAll(err.Error(), "\n", "; ")
	if faults, ok := errors.AsType[*gate.ConfigError](err); ok && len(faults.Faults) > 0 {
		return failed(what, edit(path, faults.Faults[0].Line))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return failed(what, "approvald init"+p.gateFlags())
	}
	if errors.Is(err, fs.ErrPermission) {
		return failed(what, p.asOwner(path))
	}
	var repair string
	if e, ok := errors.AsType[*gate.Error](err); ok {
		repair = commandIn(e.Hint)
	}
	if info, serr := os.Stat(path); repair == "" && serr == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			repair = p.asOwner(path) // only they and root may trust it
		}
	}
	if repair == "" {
		repair = "ls -ld " + quote(path)
	}
	return failed(what, repair)
}

// asOwner is this command as the user to whom the path, or the directory that it is in, belongs.
func (p *patient) asOwner(path string) string {
	name := "root"
	for dir := path; ; dir = filepath.Dir(dir) {
		if info, err := os.Lstat(dir); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				name = "'#" + strconv.FormatUint(uint64(st.Uid), 10) + "'"
				if u, err := user.LookupId(strconv.FormatUint(uint64(st.Uid), 10)); err == nil {
					name = quote(u.Username)
				}
			}
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return "sudo -u " + name + " approvald doctor" + p.gateFlags()
}

// What has to be free for a gate to be at work for a while.
const (
	minFree   = 16 << 20 // bytes
	minInodes = 256
)

func lookAtDisk(ctx context.Context, p *patient) verdict {
	dir := existing(p.cfg.Home)
	var st unix.Statfs_t
	if err := p.o.Statfs(dir, &st); err != nil {
		return failed(fmt.Sprintf("%s: its file system cannot be examined: %v", dir, err), "df "+quote(dir))
	}
	kind, hostOnly, err := lease.FilesystemAt(dir)
	if err != nil {
		kind = "an unknown file system"
	}
	free := uint64(st.Bavail) * uint64(st.Bsize)
	mount := mountPoint(dir)
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return failed(fmt.Sprintf("%s: the file system is mounted read-only", dir), "mount -o remount,rw "+quote(mount))
	case free < minFree:
		return failed(fmt.Sprintf("%s: %s free, and a gate wants %s", dir, mib(free), mib(minFree)),
			"du -xh --max-depth=2 "+quote(mount)+" | sort -h | tail -20")
	case st.Files > 0 && st.Ffree < minInodes:
		return failed(fmt.Sprintf("%s: %d inodes free, and a gate wants %d", dir, st.Ffree, minInodes),
			"du -x --inodes --max-depth=2 "+quote(mount)+" | sort -n | tail -20")
	case hostOnly && p.daemon(ctx) == nil:
		return failed(fmt.Sprintf("%s: on %s a lock may keep out processes of this host only; use it when one host alone serves the gate", dir, kind),
			"approvald up --allow-remote-fs"+p.gateFlags())
	}
	inodes := ""
	if st.Files > 0 {
		inodes = ", inodes enough"
	}
	return fine(fmt.Sprintf("%s, %s free%s", kind, mib(free), inodes))
}

func mib(bytes uint64) string {
	switch mib := bytes >> 20; {
	case mib >= 10<<10:
		return fmt.Sprintf("%d GiB", mib>>10)
	default:
		return fmt.Sprintf("%d MiB", mib)
	}
}

// existing is the nearest directory of the path that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}

func mountPoint(dir string) string {
	device := func(path string) (uint64, bool) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, false
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, false
		}
		return uint64(st.Dev), true
	}
	own, ok := device(dir)
	for ok && dir != filepath.Dir(dir) {
		above, known := device(filepath.Dir(dir))
		if !known || above != own {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// maxListed bounds how many files of one directory are looked at.
const maxListed = 1000

// lookAtFiles looks at who may use the gate's files, and to whom they belong.
func lookAtFiles(_ context.Context, p *patient) verdict {
	paths := p.cfg.Paths()
	home, err := os.Stat(paths.Home)
	if errors.Is(err, fs.ErrNotExist) {
		return fine(paths.Home + " is not there yet; the first request or start makes it")
	}
	if err != nil {
		return failed("the gate's home: "+err.Error(), p.asOwner(paths.Home))
	}
	if perm := home.Mode().Perm(); perm&0o022 != 0 {
		return failed(fmt.Sprintf("%s: others may replace the gate's files (mode %04o)", paths.Home, perm), "chmod go-w "+quote(paths.Home))
	}
	seen := 0
	for _, dir := range []string{filepath.Dir(paths.Log), paths.Daemon, paths.Payloads, paths.Quarantine, paths.Archive} {
		if v, bad := p.directory(dir, home, &seen); bad {
			return v
		}
	}
	return fine(fmt.Sprintf("%s, of one owner and closed to others", count(seen, "file")))
}

func (p *patient) directory(dir string, home fs.FileInfo, seen *int) (verdict, bool) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return verdict{}, false
	}
	if err != nil {
		return failed("a file of the gate: "+err.Error(), p.asOwner(p.cfg.Home)), true
	}
	if v, bad := judgeFile(dir, info, home, p.cfg.Home); bad {
		return v, true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return failed("a directory of the gate: "+err.Error(), p.asOwner(p.cfg.Home)), true
	}
	for _, entry := range entries[:min(len(entries), maxListed)] {
		info, err := entry.Info()
		if err != nil {
			continue // it was removed meanwhile, as temporary files are
		}
		*seen++
		if v, bad := judgeFile(filepath.Join(dir, entry.Name()), info, home, p.cfg.Home); bad {
			return v, true
		}
	}
	return verdict{}, false
}

func judgeFile(path string, info, home fs.FileInfo, homePath string) (verdict, bool) {
	if info.Mode()&(fs.ModeSymlink|fs.ModeSocket) != 0 {
		return verdict{}, false
	}
	if perm := info.Mode().Perm(); perm&0o027 != 0 {
		return failed(fmt.Sprintf("%s: others may use it (mode %04o)", path, perm), "chmod g-w,o-rwx "+quote(path)), true
	}
	own, ok := info.Sys().(*syscall.Stat_t)
	of, okHome := home.Sys().(*syscall.Stat_t)
	if ok && okHome && own.Uid != of.Uid {
		return failed(fmt.Sprintf("%s: belongs to uid %d, and the gate's home to uid %d, whose daemon cannot use it", path, own.Uid, of.Uid),
			"sudo chown --reference "+quote(homePath)+" "+quote(path)), true
	}
	return verdict{}, false
}

// unitToken is the file that the shipped unit hands to the daemon as a credential.
func (p *patient) unitToken() string {
	if filepath.Dir(p.cfg.File) != "/etc/approvald" {
		return ""
	}
	return "/etc/approvald/" + p.o.Gate + ".token"
}

func lookAtToken(_ context.Context, p *patient) verdict {
	t := p.cfg.Telegram
	source := t.TokenFile
	var err error
	switch {
	case t.TokenFile != "":
		p.tokenFile = t.TokenFile
		p.token, err = p.cfg.Token()
	case t.TokenEnv != "":
		if os.Getenv(t.TokenEnv) == "" {
			return moot("telegram.token_env names a variable that this shell does not have; the daemon's own is not looked at")
		}
		source = "the variable that telegram.token_env names"
		p.token, err = p.cfg.Token()
	case os.Getenv("CREDENTIALS_DIRECTORY") == "" && p.unitToken() != "":
		p.tokenFile, source = p.unitToken(), p.unitToken()
		if p.token, err = gate.TokenAt(p.tokenFile); errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			return moot("it is a credential of the systemd unit; to look at it, run as root, with it in " + p.tokenFile)
		}
	default:
		source = "the systemd credential"
		p.token, err = p.cfg.Token()
	}
	if err != nil {
		return failed(err.Error(), p.mendSecret(p.tokenFile, err, p.writeToken()))
	}
	p.secrets = append(p.secrets, p.token)
	p.botID = transport.BotID(p.token)
	return fine(source + " holds one, as @BotFather writes them")
}

// writeToken is the command that puts another token in place.
func (p *patient) writeToken() string {
	switch {
	case p.tokenFile != "":
		return "(umask 077; cat >" + quote(p.tokenFile) + ")"
	case p.cfg.Telegram.TokenEnv != "":
		return "export " + p.cfg.Telegram.TokenEnv + `="$(cat)"`
	default:
		return "approvald init --force --token-stdin" + p.gateFlags()
	}
}

// mendSecret is what to do about a secret's file that cannot be used; write is how to make it anew.
func (p *patient) mendSecret(file string, err error, write string) string {
	if e, ok := errors.AsType[*gate.Error](err); ok {
		if cmd := commandIn(e.Hint); strings.HasPrefix(cmd, "chmod ") {
			return cmd
		}
	}
	if errors.Is(err, fs.ErrPermission) && file != "" {
		return p.asOwner(p.cfg.Home)
	}
	return write
}

func lookAtSecret(_ context.Context, p *patient) verdict {
	file := p.cfg.Transport.Webhook.SecretFile
	if file == "" && os.Getenv("CREDENTIALS_DIRECTORY") == "" && p.unitToken() != "" {
		return moot("it is a credential of the systemd unit, which only the daemon has")
	}
	secret, err := p.cfg.WebhookSecret(p.token)
	if err != nil {
		return failed(err.Error(), p.mendSecret(file, err, newSecret(file)))
	}
	p.secrets = append(p.secrets, secret)
	if file == "" {
		file = "the systemd credential"
	}
	return fine(file + " holds one")
}

// newSecret is the command that makes a webhook secret in the file, or in a new one when the configuration names none.
func newSecret(file string) string {
	if file == "" {
		return "approvald init --force"
	}
	return "(umask 077; openssl rand -hex 32 >" + quote(file) + ")"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
