package lease

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/durable"
)

// system is what the lease asks of the kernel directly. Tests replace single
// calls to make the mechanism itself fail.
type system struct {
	open     func(path string, flags int, mode uint32) (int, error)
	flock    func(fd, how int) error
	lstat    func(path string, st *unix.Stat_t) error
	statfs   func(path string, st *unix.Statfs_t) error
	exchange func(a, b string) error
	inotify  func() (int, error)
	// uptime is the time since boot, suspended time included.
	uptime func() (time.Duration, error)
}

func realSystem() *system {
	return &system{
		open:   durable.OpenFD,
		flock:  unix.Flock,
		lstat:  unix.Lstat,
		statfs: unix.Statfs,
		exchange: func(a, b string) error {
			return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		},
		inotify: func() (int, error) { return unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK) },
		uptime: func() (time.Duration, error) {
			var ts unix.Timespec
			err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
			return time.Duration(ts.Nano()), err
		},
	}
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func (s *system) identify(path string) (fileID, error) {
	var st unix.Stat_t
	if err := retry(func() error { return s.lstat(path, &st) }); err != nil {
		return fileID{}, err
	}
	return idOf(&st), nil
}

// filesystem is where a lock lives and how far it reaches.
type filesystem struct {
	// name is the type's usual name, or its magic number.
	name string
	// remote: processes of other hosts may use the same files, and a lock
	// that is taken here may not stop them.
	remote bool
	// plain: stat(2) and /proc/locks call its device by the same number.
	plain bool
}

// filesystems maps the magic numbers of statfs(2) to names. Those that are not
// local by nature are marked.
var filesystems = map[uint32]filesystem{
	0xEF53:     {name: "ext4", plain: true},
	0x58465342: {name: "xfs", plain: true},
	0x9123683E: {name: "btrfs"},
	0x01021994: {name: "tmpfs", plain: true},
	0x794C7630: {name: "overlayfs"},
	0xF2F52010: {name: "f2fs", plain: true},
	0x2FC12FC1: {name: "zfs"},
	0x4D44:     {name: "vfat", plain: true},
	0x858458F6: {name: "ramfs", plain: true},
	0x6969:     {name: "nfs", remote: true},
	0x517B:     {name: "smb", remote: true},
	0xFF534D42: {name: "cifs", remote: true},
	0xFE534D42: {name: "smb2", remote: true},
	0x01021997: {name: "9p", remote: true},
	0x65735546: {name: "fuse", remote: true},
	0x00C36400: {name: "ceph", remote: true},
	0x5346414F: {name: "afs", remote: true},
	0x6B414653: {name: "kafs", remote: true},
	0x73757245: {name: "coda", remote: true},
	0x0BD00BD0: {name: "lustre", remote: true},
	0x47504653: {name: "gpfs", remote: true},
	0x786F4256: {name: "vboxsf", remote: true},
	0xBACBACBC: {name: "vmhgfs", remote: true},
}

func (s *system) filesystem(path string) (filesystem, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return s.statfs(path, &st) }); err != nil {
		return filesystem{}, err
	}
	magic := uint32(st.Type)
	if fs, ok := filesystems[magic]; ok {
		return fs, nil
	}
	return filesystem{name: fmt.Sprintf("type 0x%x", magic)}, nil
}
