package gate

import (
	"bytes"
	"fmt"
	"path/filepath"
	"reflect"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/durable"
)

// AddApprover writes one more approver to the end of the configuration that cfg was read from, and answers what the file says then.
// Everything else in it stays as it is, comments, mode and owner included. It refuses, and leaves the file alone, when
// the result would not be exactly cfg with that approver, or when the file is no longer what cfg was read from.
func AddApprover(fsys durable.FS, cfg Config, a Approver) (Config, error) {
	doc, err := readConfig(cfg.File)
	if err != nil {
		return Config{}, err
	}
	now, err := ParseConfig(cfg.Gate, cfg.File, doc)
	if err != nil {
		return Config{}, err
	}
	if now.Hash != cfg.Hash {
		return Config{}, changedMeanwhile(cfg.File)
	}
	table := fmt.Sprintf("\n[[approvers]]\nid = %s\ntelegram_user_id = %d\n", quoteTOML(a.ID), a.TelegramUserID)
	longer := bytes.Clone(doc)
	if len(longer) > 0 && longer[len(longer)-1] != '\n' {
		longer = append(longer, '\n')
	}
	longer = append(longer, table...)
	byHand := func(err error, why string) error {
		return &Error{Code: CodeConfig, Err: err, Message: cfg.File + " was left as it is: " + why,
			Hint: fmt.Sprintf("add the approver yourself: id = %s, telegram_user_id = %d", quoteTOML(a.ID), a.TelegramUserID)}
	}
	next, err := ParseConfig(cfg.Gate, cfg.File, longer)
	if err != nil {
		return Config{}, byHand(err, "with one more [[approvers]] it would be at fault: "+err.Error())
	}
	want := now
	want.Approvers, want.Hash = append(want.Approvers[:len(want.Approvers):len(want.Approvers)], a), next.Hash
	if !reflect.DeepEqual(next, want) {
		return Config{}, byHand(nil, "one more [[approvers]] at its end would mean something else")
	}
	// A link stays a link.
	path, err := filepath.EvalSymlinks(cfg.File)
	if err != nil {
		return Config{}, internalError(err, "add an approver to %s", cfg.File)
	}
	err = fsys.Rewrite("config", path, longer, func() error {
		again, err := readConfig(cfg.File)
		if err == nil && !bytes.Equal(again, doc) {
			return changedMeanwhile(cfg.File)
		}
		return err
	})
	if ErrorCode(err) == CodeConfig {
		return Config{}, err
	}
	if err != nil {
		return Config{}, internalError(err, "add an approver to %s", cfg.File)
	}
	return next, nil
}

func changedMeanwhile(file string) error {
	return refuse(CodeConfig, "look at what changed, then do it again", "%s was changed meanwhile, and was left as it is", file)
}

// CheckWritable refuses a configuration file that this user cannot replace, before anybody's time goes into what to write.
func CheckWritable(cfg Config) error {
	path, err := filepath.EvalSymlinks(cfg.File)
	if err == nil {
		err = unix.Faccessat(unix.AT_FDCWD, filepath.Dir(path), unix.W_OK, unix.AT_EACCESS)
	}
	if err != nil {
		return &Error{Code: CodeConfig, Err: err, Message: fmt.Sprintf("%s cannot be replaced by this user: %v", cfg.File, err),
			Hint: "run it as the owner of that directory, with sudo perhaps"}
	}
	return nil
}
