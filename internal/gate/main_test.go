package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/approvald/approvald/internal/durable"
)

// helperEnv makes the test binary one of several processes that work on one gate.
const helperEnv = "GATE_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		if err := helper(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// helperJob is what a helper reads from its standard input once it may begin.
type helperJob struct {
	Home    string
	Op      string // create, start or archive
	Key     string
	Payload string
	Again   bool
	Rounds  int // create: keys of their own that the process files beside; archive: how often
	KillAt  int // archive: the step before which the process dies, from 1; 0 for none
}

// helperResult is what a helper answers on its standard output.
type helperResult struct {
	Won  bool
	Seq  int64
	Code string
}

func helper() error {
	fmt.Println("ready")
	var job helperJob
	if err := json.NewDecoder(os.Stdin).Decode(&job); err != nil {
		return err
	}
	steps := 0
	g, err := Open(testConfig(job.Home), OpenOptions{FS: durable.FS{Hook: func(string, string) error {
		if steps++; steps == job.KillAt {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}}})
	if err != nil {
		return err
	}
	defer g.Close()
	ctx := context.Background()
	var result helperResult
	switch job.Op {
	case "create":
		for i := range job.Rounds {
			own := newRequest(fmt.Sprintf("own-%d-%d", os.Getpid(), i))
			if _, created, err := g.Create(ctx, own); err != nil || !created {
				return fmt.Errorf("own request: created %t: %w", created, err)
			}
		}
		in := newRequest(job.Key)
		in.Payload, in.Again = []byte(job.Payload), job.Again
		r, created, err := g.Create(ctx, in)
		result = helperResult{Won: created, Seq: r.Seq, Code: ErrorCode(err)}
	case "start":
		r, err := g.StartExecution(ctx, job.Key, hashHex([]byte(job.Payload)), "agent:ci", nil)
		result = helperResult{Won: err == nil, Seq: r.Seq, Code: ErrorCode(err)}
	case "archive":
		for i := range job.Rounds {
			own := newRequest(fmt.Sprintf("own-%d-%d", os.Getpid(), i))
			if _, _, err := g.Create(ctx, own); err != nil {
				return err
			}
			if _, err := g.Withdraw(ctx, own.Key, own.Requester, nil, "cancelled"); err != nil {
				return err
			}
			if _, err := g.Archive(ctx, ArchiveOptions{Carry: true}); err != nil {
				return err
			}
		}
		if job.Rounds == 0 {
			if _, err := g.Archive(ctx, ArchiveOptions{Carry: true}); err != nil {
				return err
			}
		}
	default:
		return errors.New("unknown job")
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

func testConfig(home string) Config {
	return Config{
		Gate: "test", Home: home,
		Approvers: []Approver{{ID: "alice", TelegramUserID: 1}, {ID: "bob", TelegramUserID: 2}},
		Requests:  Limits{TTL: defaultTTL, Quorum: 1, MaxPending: 1000, PerRequesterPerHour: 1000},
	}
}

func newRequest(key string) NewRequest {
	return NewRequest{Key: key, Class: "deploy.api", Summary: "restart the api", Requester: "agent:ci"}
}
