# Boots systemd as pid 1 of new name spaces, with /usr of this machine and everything else of its own:
#   unshare --mount --pid --fork --uts --ipc --kill-child sh machine.sh ROOT NAME FILES STATE
# ROOT is an empty directory, NAME a control group that is made for it, FILES what is to lie under /usr/local,
# STATE an empty directory on a disk for /var/lib: systemd keeps no key in memory.
set -eu
root=$1 name=$2 files=$3 state=$4
mount --make-rprivate /
mount -t tmpfs -o mode=0755 machine "$root"
cd "$root"
mkdir -p usr etc var/lib var/log/journal run tmp proc sys dev home root old
chmod 1777 tmp
chmod 0700 root

# systemd must find its control group at the root of what it sees.
mount -t cgroup2 cgroup2 old
group=$(sed -n 's/^0:://p' /proc/self/cgroup)
mkdir "old/$group/$name"
sh -c 'echo $PPID >"$1/cgroup.procs"' sh "old/$group/$name"
umount old

mount --rbind /usr usr
mount -o remount,ro,bind usr
mount --bind "$files" usr/local
mount --bind "$state" var/lib
for link in bin sbin lib lib32 lib64 libx32; do
	[ ! -L "/$link" ] || cp -P "/$link" "$link"
done
cp -a /etc/nsswitch.conf /etc/ld.so.cache /etc/login.defs /etc/pam.d /etc/security etc/
# Not this machine's users: those of a Debian that was just installed.
cp usr/share/base-passwd/passwd.master etc/passwd
cp usr/share/base-passwd/group.master etc/group
sed 's/^\([^:]*\):.*/\1:*:19000:0:99999:7:::/' etc/passwd >etc/shadow
sed 's/^\([^:]*\):.*/\1:*::/' etc/group >etc/gshadow
chmod 0600 etc/shadow etc/gshadow
echo 127.0.0.1 localhost >etc/hosts
echo machine >etc/hostname
echo 0123456789abcdef0123456789abcdef >etc/machine-id
mkdir etc/systemd etc/systemd/system etc/tmpfiles.d
# What looks for hardware or touches the kernel of the machine around this one.
for unit in dev-hugepages.mount dev-mqueue.mount sys-fs-fuse-connections.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
	sys-kernel-config.mount systemd-udevd.service systemd-udev-trigger.service systemd-modules-load.service systemd-sysctl.service \
	systemd-random-seed.service systemd-timesyncd.service systemd-logind.service systemd-binfmt.service \
	proc-sys-fs-binfmt_misc.automount modprobe@.service systemd-pcrphase.service systemd-firstboot.service dbus.service dbus.socket; do
	ln -s /dev/null "etc/systemd/system/$unit"
done

mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=0755 run run
mount -t tmpfs -o mode=0755 dev dev
for node in null zero full random urandom tty; do
	mknod -m 0666 "dev/$node" c "$(stat -c 0x%t "/dev/$node")" "$(stat -c 0x%T "/dev/$node")"
done
ln -s /proc/self/fd dev/fd
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 shm dev/shm

pivot_root . old
exec unshare --cgroup sh -c '
	mount -t tmpfs cgroup /sys/fs/cgroup 2>/dev/null || true
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	umount -l /old
	rmdir /old
	# As on any Debian: credentials come to a service by propagation.
	mount --make-rshared /
	hostname machine
	exec env -i container=approvald-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin \
		/lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=no'
