package app

import (
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
)

// inForce is the configuration that the daemon goes by. Options.Config stays the one that it was started with: what takes a restart
// is read from there.
type inForce struct {
	mu       sync.Mutex
	config   gate.Config
	loadedAt time.Time
	refused  string   // why the file's later text is not in force
	restart  []string // keys whose new values wait for a restart
}

// config is the configuration in force.
func (a *App) config() gate.Config {
	a.inForce.mu.Lock()
	defer a.inForce.mu.Unlock()
	return a.inForce.config
}

func (f *inForce) status() *gateapi.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &gateapi.Config{
		File: f.config.File, SHA256: f.config.Hash, LoadedAt: f.loadedAt, Error: f.refused, NeedsRestart: append([]string{}, f.restart...),
	}
}

// reload reads the configuration file again and puts it in force, as far as that can be done without a restart. A file at fault
// changes nothing. The service manager is told of both ends, so that `systemctl reload` returns when it is done.
func (a *App) reload() {
	ready := a.stages.ready.reached() // before that, READY is not ours to say
	if ready {
		a.notify("reloading", a.opts.Notify.Reloading())
	}
	what := a.readAgain()
	if ready {
		a.standing.reloaded(what)
		a.notify("reloaded", a.opts.Notify.Ready(a.client.Redactor().String(a.standing.line(a.opts.Gate))))
	}
}

// readAgain is a reload without the service manager; it answers what came of it in a few words.
func (a *App) readAgain() string {
	f := &a.inForce
	before := a.config()
	cfg, err := gate.LoadConfig(a.opts.Gate, a.opts.Config.File)
	if err != nil {
		f.mu.Lock()
		f.refused = a.client.Redactor().String(err.Error())
		since := f.loadedAt
		f.mu.Unlock()
		a.reloads.add(false)
		a.log.Error("the configuration file is at fault; the configuration read before stays in force",
			zap.String("file", a.opts.Config.File), zap.Error(err), zap.Time("in_force_since", since), zap.String("config_sha256", before.Hash))
		return "the configuration file is at fault, the one read before stays in force"
	}
	restart := append(gate.RestartFor(a.opts.Config, cfg), a.changedSecrets(cfg)...)
	// Limits of what may be asked first, then who decides: a request that was let in is judged by the newer rules in any case.
	a.gate.Reconfigure(cfg)
	a.loop.Configure(policyOf(cfg))
	f.mu.Lock()
	f.config, f.loadedAt, f.refused, f.restart = cfg, a.opts.Now(), "", restart
	f.mu.Unlock()
	a.reloads.add(true)
	select {
	case a.reconfigured <- struct{}{}:
	default:
	}
	fields := []zap.Field{zap.String("file", cfg.File), zap.String("config_sha256", cfg.Hash), zap.Bool("changed", cfg.Hash != before.Hash)}
	a.log.Info("the configuration was read again and is in force", fields...)
	if len(restart) > 0 {
		a.log.Warn("of the configuration that was read again, these take effect with a restart only; until then the values from the start hold",
			zap.Strings("keys", restart))
		return "restart it for " + strings.Join(restart, ", ")
	}
	return "configuration read " + a.opts.Now().UTC().Format(time.RFC3339)
}

// changedSecrets names the keys whose files hold another secret by now, or none that could be used: secrets are read at start only.
func (a *App) changedSecrets(cfg gate.Config) []string {
	var keys []string
	if cfg.Telegram.TokenFile == a.opts.Config.Telegram.TokenFile && cfg.Telegram.TokenEnv == a.opts.Config.Telegram.TokenEnv {
		token, err := cfg.Token()
		switch {
		case err != nil:
			a.log.Warn("the bot's token cannot be read any more: the next start would fail", zap.Error(err))
		case !token.Equal(a.token):
			keys = append(keys, "the bot's token")
		}
	}
	started := a.opts.Config.Transport
	if started.Mode == gate.ModeWebhook && cfg.Transport.Mode == gate.ModeWebhook && cfg.Transport.Webhook.SecretFile == started.Webhook.SecretFile {
		secret, err := cfg.WebhookSecret(a.token)
		switch {
		case err != nil:
			a.log.Warn("the webhook's secret cannot be read any more: the next start would fail", zap.Error(err))
		case !secret.Equal(a.secret):
			keys = append(keys, "the webhook's secret")
		}
	}
	return keys
}

// policyOf is what dispatch takes of a configuration.
func policyOf(c gate.Config) dispatch.Policy {
	return dispatch.Policy{
		Rules: dispatch.RulesOf(c), ConfigHash: c.Hash, Deputy: dispatch.Chat{ID: c.Attention.DeputyChatID},
		Reminder: c.Attention.Reminder, ThreadID: c.Telegram.MessageThreadID,
	}
}

// reloads counts what became of them.
type reloads struct {
	mu           sync.Mutex
	good, failed int
	lastGood     bool
}

func (r *reloads) add(good bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lastGood = good; good {
		r.good++
	} else {
		r.failed++
	}
}

func (r *reloads) counts() (good, failed int, lastGood bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.good, r.failed, r.lastGood || r.good+r.failed == 0
}
