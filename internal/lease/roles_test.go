package lease

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// runRole is the test binary as one of the programs that the tests run beside
// themselves.
func runRole(role string) int {
	home := os.Getenv("LEASE_TEST_HOME")
	lines := bufio.NewScanner(os.Stdin)
	switch role {
	case "holder":
		return holderRole(home, lines, false)
	case "standby":
		return holderRole(home, lines, true)
	case "broken":
		return brokenRole(home, lines)
	case "foreign":
		return foreignRole(home, lines)
	case "inspector":
		r, err := Inspect(home)
		fmt.Printf("held=%v %+v %v\n", r.Held, r, err)
		return 0
	case "sleeper":
		fmt.Println("sleeping")
		lines.Scan()
		return 0
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		return 2
	}
}

// holderRole takes and releases as it is told: "take", "check", "release",
// "epoch". It answers "held", "refused CODE", "ok" or "error TEXT".
func holderRole(home string, lines *bufio.Scanner, standby bool) int {
	var l *Lease
	fmt.Println("ready")
	for lines.Scan() {
		switch lines.Text() {
		case "take":
			var err error
			l, err = Acquire(context.Background(), Options{
				Home: home, Mode: ModePoll, Program: "approvald", Version: "test", Standby: standby,
				Report: func(e Event) {
					if e.Kind == Waiting {
						fmt.Println("waiting")
					}
				},
			})
			if err != nil {
				fmt.Println("refused", code(err), err)
				continue
			}
			reason, _ := l.Takeover()
			fmt.Println("held", time.Now().UnixNano(), reason)
		case "inspect":
			r, err := Inspect(home)
			fmt.Printf("held=%v %+v %v\n", r.Held, r, err)
		case "check":
			answer(l.Check())
		case "epoch":
			answer(l.SetEpoch(9))
		case "release":
			answer(l.Release())
		case "spawn":
			answer(spawn())
		}
	}
	return 0
}

func answer(err error) {
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("ok")
}

func code(err error) string {
	var held *HeldError
	var u *UnavailableError
	switch {
	case errors.As(err, &held):
		return held.Code
	case errors.As(err, &u):
		return u.Code
	default:
		return "other"
	}
}

// spawn starts a child that outlives this process and says its pid.
func spawn() error {
	child, err := os.StartProcess(os.Args[0], os.Args[:1], &os.ProcAttr{
		Env:   []string{"LEASE_TEST_ROLE=sleeper"},
		Files: []*os.File{os.Stdin, nil, os.Stderr},
	})
	if err != nil {
		return err
	}
	fmt.Println("child", child.Pid)
	return child.Release()
}
