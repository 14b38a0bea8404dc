package rehearse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/stage"
	"github.com/approvald/approvald/internal/telegramtest"
)

// Options says what to rehearse.
type Options struct {
	// Argv is the program with its arguments. It runs in the working directory with this process's environment, without input.
	Argv []string
	// Scenario says how its requests are answered.
	Scenario Scenario
	// Patience is how long a request waits that nobody answers.
	Patience time.Duration
	// Timeout ends a program that does not end.
	Timeout time.Duration
	// Actions are names of commands that are the risky action: stand-ins are called in their place, and do nothing.
	Actions []string
	// Evidence are files that the risky action makes or changes.
	Evidence []string
	// Out gets what the program prints.
	Out io.Writer
	// Program is the approvald to use. Default: the running program.
	Program string
}

// Run rehearses. The error is of the rehearsal itself; what the program did wrong is in the report.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if o.Program == "" {
		if o.Program, err = os.Executable(); err != nil {
			return report, fmt.Errorf("find the program itself: %w", err)
		}
	}
	set, err := stage.New(stage.Options{Program: o.Program, Name: "rehearsal"})
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	a := &approver{stage: set, scenario: o.Scenario}
	if err := a.furnish(o.Patience); err != nil {
		return report, err
	}
	if err := standIns(set.Dir, o.Program, o.Actions); err != nil {
		return report, err
	}
	startCtx, cancel := context.WithTimeout(ctx, stepLimit)
	a.daemon, _, err = set.StartDaemon(startCtx)
	cancel()
	if err != nil {
		return report, err
	}
	if o.Scenario.Answers[0].Do == Deaf {
		set.Telegram.Offline()
	}
	watchCtx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { a.watch(watchCtx) })
	f, err := perform(ctx, set, o)
	stop()
	watching.Wait()
	if err := errors.Join(err, a.err, ctx.Err()); err != nil {
		return report, err
	}
	return judge(f), nil
}

// furnish writes the throw-away gate's configuration.
func (a *approver) furnish(patience time.Duration) error {
	var config strings.Builder
	var members []telegramtest.Member
	for n := range people {
		id := int64(111 * (n + 1))
		a.stage.Telegram.AddUser(telegramtest.User{ID: id, FirstName: fmt.Sprintf("Approver %d", n+1)})
		a.phones = append(a.phones, a.stage.Telegram.Phone(id))
		members = append(members, telegramtest.Members(id)...)
		fmt.Fprintf(&config, "[[approvers]]\nid = \"approver-%d\"\ntelegram_user_id = %d\n\n", n+1, id)
	}
	a.stage.Telegram.AddChat(telegramtest.Chat{ID: chatID, Type: telegramtest.Supergroup, Title: "Rehearsal", Members: members})
	ttl := rehearsalTTL
	if a.scenario.expires() {
		ttl = patience.String()
	}
	fmt.Fprintf(&config, "[requests]\nttl = %q\n", ttl)
	return a.stage.Configure(chatID, config.String())
}

// standIns puts the stand-ins for risky actions, and approvald itself, where the program looks for commands first.
func standIns(dir, program string, names []string) error {
	for _, name := range []string{actionsDir, "bin"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	for _, name := range names {
		if name == "" || name != filepath.Base(name) || name == "approvald" {
			return fmt.Errorf("%q is not the name of a command: name it as the program calls it, without a directory", name)
		}
		if err := os.Symlink(program, filepath.Join(dir, actionsDir, name)); err != nil {
			return fmt.Errorf("make a stand-in for %s: %w", name, err)
		}
	}
	return os.Symlink(program, filepath.Join(dir, "bin", "approvald"))
}

// perform runs the program to its end.
func perform(ctx context.Context, set *stage.Stage, o Options) (facts, error) {
	f := facts{evidence: len(o.Actions)+len(o.Evidence) > 0}
	before := look(o.Evidence)
	cwd, err := os.Getwd()
	if err != nil {
		return f, err
	}
	path := strings.Join([]string{filepath.Join(set.Dir, actionsDir), filepath.Join(set.Dir, "bin"), os.Getenv("PATH")}, string(os.PathListSeparator))
	env := slices.DeleteFunc(os.Environ(), func(assignment string) bool {
		name, _, _ := strings.Cut(assignment, "=")
		return name == "PATH" || name == gate.RehearsalVariable
	})
	env = append(env, "PATH="+path, gate.RehearsalVariable+"="+set.Dir)
	argv, err := resolve(o.Argv, path)
	if err != nil {
		return f, err
	}
	program, err := set.Exec(stage.Command{Argv: argv, Dir: cwd, Env: env, Out: o.Out})
	if err != nil {
		return f, err
	}
	limit, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if f.code, err = program.Exit(limit); err != nil {
		if limit.Err() == nil || ctx.Err() != nil {
			return f, err
		}
		f.timeout = true
		if err := syscall.Kill(-program.PID(), syscall.SIGKILL); err != nil {
			return f, err
		}
		<-program.Done()
		f.code = program.Code()
	}
	f.took = program.Ended().Sub(program.Began)
	if f.requests, err = readRequests(set.Home()); err != nil {
		return f, err
	}
	if f.notes, err = readNotes(set.Dir); err != nil {
		return f, err
	}
	for name, was := range before {
		if look([]string{name})[name] != was {
			f.changed = append(f.changed, name)
		}
	}
	slices.Sort(f.changed)
	return f, nil
}

// resolve finds the program as a shell with that PATH would.
func resolve(argv []string, path string) ([]string, error) {
	if strings.Contains(argv[0], "/") {
		return argv, nil
	}
	for _, dir := range filepath.SplitList(path) {
		name := filepath.Join(dir, argv[0])
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return append([]string{name}, argv[1:]...), nil
		}
	}
	return nil, fmt.Errorf("there is no program %s in PATH", argv[0])
}

// looks is what can be seen of a file from outside.
type looks struct {
	there bool
	size  int64
	mtime time.Time
	inode uint64
}

func look(names []string) map[string]looks {
	seen := map[string]looks{}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			seen[name] = looks{}
			continue
		}
		l := looks{there: true, size: info.Size(), mtime: info.ModTime()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			l.inode = st.Ino
		}
		seen[name] = l
	}
	return seen
}
