package gate

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// Metrics is where the daemon can be watched.
type Metrics struct {
	Listen string // HOST:PORT of a loopback address, or unix:PATH; empty for nowhere
}

func (m *Metrics) read(n *node) {
	const remedy = `write "127.0.0.1:9464", "[::1]:9464" or "unix:/run/…/metrics.sock"`
	if listen, ok := n.str("listen", "an address in quotes"); ok {
		m.Listen = listen
		if what := checkLocal(listen); what != "" {
			n.fault("listen", remedy, "%s", what)
		}
	}
	n.rest()
}

// checkLocal refuses an address that another machine could reach. A name is refused as well: what it means is not for this file
// to say.
func checkLocal(s string) string {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if !filepath.IsAbs(path) {
			return "the path of the socket is not absolute"
		}
		return ""
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Sprintf("%q is no HOST:PORT", clip(s))
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Sprintf("%q is no port number", clip(port))
	}
	if addr, err := netip.ParseAddr(host); err != nil || !addr.IsLoopback() {
		return fmt.Sprintf("%q is no address of this machine alone", clip(host))
	}
	return ""
}
