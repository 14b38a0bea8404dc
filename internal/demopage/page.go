// Package demopage shows on one page in a browser what approvald does: the phones of two approvers, the programs that ask and wait, and
// the approval log as it grows. Behind the page stand the real daemon, the real commands and the real log, on a throw-away gate against a
// Bot API server on loopback.
//
// It guarantees that it listens on loopback alone, that only who knows the address it prints can read or press anything (the address holds a
// random key, and requests that a foreign page or name makes are refused), and that nothing is left behind when it ends.
//
// It is a demonstration: the page decides nothing by itself, and there is one page's worth of state, shared by all who open it.
package demopage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/term"
)

// ErrNotLoopback reports an address to listen on that other machines could reach.
var ErrNotLoopback = errors.New("the demo listens on loopback only: give --listen an address such as 127.0.0.1:8080")

// Options says how to show the page.
type Options struct {
	// Program is the approvald to run as daemon and as commands. Default: the running program.
	Program string
	// Listen is a loopback address. Default: 127.0.0.1 with a port that is free.
	Listen string
	// Out is where the page's address is printed.
	Out io.Writer
	// Open shows an address in a browser; nil leaves that to the person.
	Open func(address string) error
}

// Run serves the page until ctx ends, and then takes everything down. It returns nil when it was ended by ctx.
func Run(ctx context.Context, o Options) (err error) {
	if o.Program == "" {
		if o.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("find the program itself: %w", err)
		}
	}
	listener, err := listen(o.Listen)
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // the server has closed it by then
	p, err := newPlay(o.Program)
	if err != nil {
		return fmt.Errorf("set the demo up: %w", err)
	}
	defer func() { err = errors.Join(err, p.close()) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p.begin(ctx)
	defer p.wait() // before close, which takes the ground away
	defer stop()

	key := rand.Text()
	server := &http.Server{
		Handler:           handler(p, key, listener.Addr().String()),
		ReadHeaderTimeout: 5 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	address := "http://" + listener.Addr().String() + "/" + key + "/"
	if err := announce(o, address); err != nil {
		return errors.Join(err, server.Close(), <-served)
	}
	select {
	case <-ctx.Done():
	case err := <-served:
		return fmt.Errorf("serve the page: %w", err)
	}
	stop()
	if err := server.Close(); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func listen(address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", ErrNotLoopback, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, ErrNotLoopback
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the demo's page: %w", err)
	}
	return l, nil
}

func announce(o Options, address string) error {
	_, err := fmt.Fprintf(o.Out, "The demo is at %s\n", address)
	if err != nil {
		return err
	}
	if file, ok := o.Out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		if _, err := fmt.Fprintln(o.Out, "Everything runs on this machine; Ctrl-C ends it and leaves nothing behind."); err != nil {
			return err
		}
	}
	if o.Open == nil {
		return nil
	}
	if err := o.Open(address); err != nil {
		_, err = fmt.Fprintf(o.Out, "No browser could be started (%v): open that address yourself.\n", err)
		return err
	}
	return nil
}
