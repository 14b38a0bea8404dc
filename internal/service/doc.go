// Package service holds the tests of approvald as an operator meets it on Debian: what `make install` lays down, the guide that leads to
// a running gate, and the daemon under a real systemd.
//
// They guarantee that the unit starts, is ready, serves and stops with all of its restrictions in force: systemd runs as pid 1 in name
// spaces of its own, with a root file system that is thrown away, so that the restrictions are its own work and not an imitation.
// They do not show a boot, and there is no D-Bus in that machine. They need root and run with `make test-all`.
package service
