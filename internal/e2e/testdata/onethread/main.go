// Command onethread is approvald for the fault matrix: all that its verbs do happens on the main thread, where strace counts and
// fails one system call after the other. The variable STEPS names, in place of a verb, work that a daemon does and no verb:
//
//	file KEY...   files requests through one handle of the log
//	snapshot      writes a snapshot, files the request "between", writes another snapshot
//	epoch N       opens N epochs in the delivery journal
//	start         what a daemon does at its start: removes what killed processes have left, opens an epoch; then files "later"
//
// What is acknowledged is printed at once, one word a line on stdout; a failure, with its hint, one line on stderr.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/cli"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
)

func init() { runtime.LockOSThread() }

func main() {
	steps := strings.Fields(os.Getenv("STEPS"))
	if len(steps) == 0 {
		os.Exit(cli.Main("onethread"))
	}
	os.Exit(run(steps[0], steps[1:]))
}

func run(what string, args []string) int {
	path, err := gate.FindConfig("default", "")
	if err != nil {
		return failed("configuration", err)
	}
	cfg, err := gate.LoadConfig("default", path)
	if err != nil {
		return failed("configuration", err)
	}
	g, err := gate.Open(cfg, gate.OpenOptions{Logf: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }})
	if err != nil {
		return failed("open", err)
	}
	defer g.Close()
	switch what {
	case "file":
		return file(g, args)
	case "snapshot":
		code := 0
		if err := g.Log().WriteSnapshot(context.Background()); err != nil {
			code = failed("snapshot", err)
		}
		code = max(code, file(g, []string{"between"}))
		if err := g.Log().WriteSnapshot(context.Background()); err != nil {
			code = failed("snapshot", err)
		}
		return code
	case "start":
		if _, err := g.Sweep(); err != nil {
			return failed("sweep", err)
		}
		return max(epochs(g, 1), file(g, []string{"later"}))
	case "epoch":
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return failed("epoch", err)
		}
		return epochs(g, n)
	}
	return failed(what, errors.New("no such steps"))
}

func file(g *gate.Gate, keys []string) (code int) {
	for _, key := range keys {
		_, _, err := g.Create(context.Background(), gate.NewRequest{Key: key, Class: "deploy.test", Summary: "s", Requester: "agent:ci"})
		if err != nil {
			code = failed(key, err)
			continue
		}
		os.Stdout.WriteString(key + "\n")
	}
	return code
}

func epochs(g *gate.Gate, n int) (code int) {
	if err := g.Prepare(context.Background()); err != nil {
		return failed("prepare", err)
	}
	deliveries := dispatch.NewDeliveries()
	journal, err := g.Paths().OpenJournal(approvallog.Options{Fold: deliveries})
	if err != nil {
		return failed("journal", err)
	}
	defer journal.Close()
	for i := range n {
		epoch, err := dispatch.OpenEpoch(context.Background(), dispatch.WrapLog(g.Log()), dispatch.WrapLog(journal), deliveries, dispatch.EpochInfo{})
		if err != nil {
			code = failed(fmt.Sprint("epoch ", i+1), err)
			continue
		}
		os.Stdout.WriteString(fmt.Sprintln(epoch))
	}
	return code
}

func failed(what string, err error) int {
	hint := gate.MachineHint(err)
	if e, ok := errors.AsType[*gate.Error](err); ok {
		hint = e.Hint
	}
	fmt.Fprintf(os.Stderr, "%s: %v\nhint: %s\n", what, err, hint)
	return 1
}
