package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

func (p *patient) unitName() string { return "approvald@" + p.o.Gate + ".service" }

// unit is what systemd knows of the gate's service.
func (p *patient) unit(ctx context.Context) (map[string]string, error) {
	out, err := p.o.Systemctl(ctx, "show", p.unitName(), "--no-pager",
		"--property=LoadState,ActiveState,SubState,Result,UnitFileState,DropInPaths,NeedDaemonReload,MainPID")
	if err != nil {
		return nil, err
	}
	properties := make(map[string]string)
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		properties[key] = value
	}
	return properties, nil
}

// up is the command that starts the gate's daemon: by its service where it has one.
func (p *patient) up(ctx context.Context) string {
	if v, err := p.unit(ctx); err == nil && strings.HasPrefix(v["UnitFileState"], "enabled") {
		return "sudo systemctl restart " + p.unitName()
	}
	return "approvald up" + p.gateFlags()
}

// restart is the command that ends the daemon and starts it again.
func (p *patient) restart(ctx context.Context, pid int) string {
	if p.isService(ctx, pid) {
		return "sudo systemctl restart " + p.unitName()
	}
	return fmt.Sprintf("kill -TERM %d && approvald up%s", pid, p.gateFlags())
}

// reload is the command that has the daemon read its configuration again.
func (p *patient) reload(ctx context.Context, pid int) string {
	if p.isService(ctx, pid) {
		return "sudo systemctl reload " + p.unitName()
	}
	return fmt.Sprintf("kill -HUP %d", pid)
}

func (p *patient) isService(ctx context.Context, pid int) bool {
	v, err := p.unit(ctx)
	return err == nil && v["MainPID"] == strconv.Itoa(pid)
}

// lookAtUnit asks systemd for the gate's service.
func lookAtUnit(ctx context.Context, p *patient) verdict {
	unit := p.unitName()
	v, err := p.unit(ctx)
	if errors.Is(err, ErrNoSystemd) {
		return moot(err.Error())
	}
	if err != nil {
		return failed("systemd does not answer: "+err.Error(), "systemctl status "+unit)
	}
	enabled := strings.HasPrefix(v["UnitFileState"], "enabled")
	active := v["ActiveState"]
	about := unit + " is " + active + " (" + v["SubState"] + ")"
	if enabled {
		about += ", enabled"
	}
	if drops := strings.Fields(v["DropInPaths"]); len(drops) > 0 {
		for i := range drops {
			drops[i] = filepath.Base(drops[i])
		}
		about += ", with " + strings.Join(drops, ", ")
	}
	switch {
	case v["LoadState"] == "not-found":
		return moot(unit + " is not installed")
	case v["LoadState"] != "loaded":
		return failed(unit+" cannot be loaded ("+v["LoadState"]+")", "systemd-analyze verify "+unit)
	case v["NeedDaemonReload"] == "yes":
		return failed(about+"; its files were changed since systemd read them", "sudo systemctl daemon-reload")
	case active == "failed":
		return failed(about+": "+v["Result"], "sudo systemctl restart "+unit)
	case active == "inactive" && enabled:
		return failed(about+": it should run and does not", "sudo systemctl start "+unit)
	case active == "inactive":
		return moot(unit + " is neither enabled nor started")
	default:
		return fine(about)
	}
}
