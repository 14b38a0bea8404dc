package procid

import "golang.org/x/sys/unix"

// waitNoReap waits until the child has ended and leaves it as a zombie.
func waitNoReap(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err
		}
	}
}
