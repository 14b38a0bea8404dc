package gate

// RestartFor names the keys whose values differ between the configuration that a daemon was started with and another, and that
// take effect with a restart only: they say which bot and chat the gate is, and how updates come in. The order is that of
// docs/configuration.md. Everything else can be put in force while the daemon runs.
func RestartFor(started, now Config) []string {
	var keys []string
	differ := func(key string, changed bool) {
		if changed {
			keys = append(keys, key)
		}
	}
	differ("home", started.Home != now.Home)
	differ("telegram.token_file", started.Telegram.TokenFile != now.Telegram.TokenFile)
	differ("telegram.token_env", started.Telegram.TokenEnv != now.Telegram.TokenEnv)
	differ("telegram.chat_id", started.Telegram.ChatID != now.Telegram.ChatID)
	differ("telegram.api_base", started.Telegram.APIBase != now.Telegram.APIBase)
	differ("transport.mode", started.Transport.Mode != now.Transport.Mode)
	// What stands in a table that the mode does not use takes no effect either way.
	if started.Transport.Mode == ModeWebhook && now.Transport.Mode == ModeWebhook {
		a, b := started.Transport.Webhook, now.Transport.Webhook
		differ("transport.webhook.url", a.URL != b.URL)
		differ("transport.webhook.listen", a.Listen != b.Listen)
		differ("transport.webhook.secret_file", a.SecretFile != b.SecretFile)
		differ("transport.webhook.replace", a.Replace != b.Replace)
	}
	differ("metrics.listen", started.Metrics.Listen != now.Metrics.Listen)
	return keys
}
