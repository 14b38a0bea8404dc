package metrics

import "github.com/prometheus/client_golang/prometheus"

// snapshots makes metrics of the state at a scrape, all of one look.
type snapshots struct{ state func() Snapshot }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("approvald_"+name, help, labels, nil)
}

var (
	readyDesc       = desc("ready", "1 while the daemon can do its whole work, as /readyz tells.")
	healthyDesc     = desc("transport_healthy", "1 while updates are received.")
	ageDesc         = desc("updates_age_seconds", "How long ago updates could last be received for certain; since the start while they never could.")
	patienceDesc    = desc("updates_patience_seconds", "The age of the last good exchange from which on the gate is deaf.")
	skippedDesc     = desc("updates_skipped_total", "Updates that could not be read and were passed over.")
	pendingDesc     = desc("requests_pending", "Requests that wait for a person.")
	undeliveredDesc = desc("requests_undelivered", "Requests that wait and that no card shows yet.")
	unsettledDesc   = desc("messages_unsettled", "Messages that do not show their request's end yet.")
	mutedDesc       = desc("chat_muted_seconds", "How long Telegram takes nothing more for a chat; 0 for no limit.")
	leaseDesc       = desc("lease_held", "1 while the gate's lease is held.")
	epochDesc       = desc("lease_epoch", "The epoch of the lease; it grows with each take.")
	troubleDesc     = desc("trouble", "1 while this keeps people from being asked or heard.", "code")
	reloadsDesc     = desc("config_reloads_total", "Times that the configuration was read again, by result.", "result")
	reloadGoodDesc  = desc("config_last_reload_successful", "0 while the file's text was refused and an earlier one is in force.")
	loadedDesc      = desc("config_loaded_timestamp_seconds", "When the configuration in force was read.")
	restartDesc     = desc("config_keys_needing_restart", "Keys of the configuration whose new values wait for a restart.")
)

// Describe implements prometheus.Collector.
func (s *snapshots) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		readyDesc, healthyDesc, ageDesc, patienceDesc, skippedDesc, pendingDesc, undeliveredDesc, unsettledDesc, mutedDesc, leaseDesc,
		epochDesc, troubleDesc, reloadsDesc, reloadGoodDesc, loadedDesc, restartDesc,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *snapshots) Collect(to chan<- prometheus.Metric) {
	now := s.state()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(readyDesc, truth(now.Ready))
	gauge(healthyDesc, truth(now.TransportHealthy))
	gauge(ageDesc, now.UpdatesAge.Seconds())
	gauge(patienceDesc, now.UpdatesPatience.Seconds())
	count(skippedDesc, float64(now.UpdatesSkipped))
	gauge(pendingDesc, float64(now.Pending))
	gauge(undeliveredDesc, float64(now.Undelivered))
	gauge(unsettledDesc, float64(now.Unsettled))
	gauge(mutedDesc, now.ChatMuted.Seconds())
	gauge(leaseDesc, truth(now.LeaseHeld))
	gauge(epochDesc, float64(now.Epoch))
	for code, there := range now.Troubles {
		gauge(troubleDesc, truth(there), code)
	}
	count(reloadsDesc, float64(now.ReloadsGood), "success")
	count(reloadsDesc, float64(now.ReloadsFailed), "failure")
	gauge(reloadGoodDesc, truth(now.LastReloadGood))
	gauge(loadedDesc, float64(now.ConfigLoaded.UnixMilli())/1000)
	gauge(restartDesc, float64(now.NeedsRestart))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
