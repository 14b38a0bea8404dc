package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

// connect makes the client once. The token is known.
func (p *patient) connect() error {
	if p.telegram != nil {
		return nil
	}
	var err error
	p.telegram, err = p.o.Connect(transport.Options{
		Token: p.token, APIBase: p.cfg.Telegram.APIBase, Scrub: p.secrets, CallTimeout: callLimit,
		Dated: func(said, read time.Time) {
			p.clock.Lock()
			defer p.clock.Unlock()
			p.clock.said, p.clock.read = said, read
		},
	})
	return err
}

func lookAtBot(_ context.Context, p *patient) verdict {
	if err := p.connect(); err != nil {
		return failed(err.Error(), edit(p.cfg.File, 0))
	}
	me, err := p.telegram.GetMe(p.remote)
	switch {
	case transport.ClassOf(err) == transport.ClassToken:
		return failed("Telegram rejects the token: "+err.Error()+"; get the current one from @BotFather (/token)", p.writeToken())
	case err != nil:
		return failed("Telegram cannot be reached: "+err.Error(), p.curl("api_base", p.cfg.Telegram.APIBase, "-sS -o /dev/null -w '%{http_code}\\n'"))
	case me.ID != p.botID || !me.IsBot:
		return failed("what answers as the Bot API knows the token as somebody else's", edit(p.cfg.File, 0))
	}
	way := ""
	if c, ok := p.telegram.(interface{ Proxy() string }); ok && c.Proxy() != "" {
		way = ", through the proxy that the environment names"
	}
	return fine(fmt.Sprintf("Telegram knows it, bot %d%s", p.botID, way))
}

// curl is a command that tries an address of the configuration without showing it.
func (p *patient) curl(key, address, flags string) string {
	if address == transport.DefaultAPIBase {
		return "curl " + flags + " " + address
	}
	return "curl " + flags + ` "$(sed -n 's/^ *` + key + ` *= *"\([^"]*\)".*/\1/p' ` + quote(p.cfg.File) + `)"`
}

// maxSkew is how far the machine's clock may be from Telegram's. Deadlines are those of the machine, and people see them.
const maxSkew = 30 * time.Second

func lookAtClock(_ context.Context, p *patient) verdict {
	p.clock.Lock()
	said, read := p.clock.said, p.clock.read
	p.clock.Unlock()
	if said.IsZero() {
		return moot("needs bot, which failed: no answer of Telegram's to compare with")
	}
	ahead := read.Sub(said) - time.Second/2 // what is said is cut to whole seconds
	switch {
	case ahead > maxSkew:
		return failed(fmt.Sprintf("this machine's clock is %s ahead of Telegram's: requests expire before people think", whole(ahead)), "timedatectl set-ntp true")
	case ahead < -maxSkew:
		return failed(fmt.Sprintf("this machine's clock is %s behind Telegram's: requests expire after people think", whole(-ahead)), "timedatectl set-ntp true")
	default:
		return fine(fmt.Sprintf("within %s of Telegram's", whole(max(2*time.Second, ahead, -ahead))))
	}
}

// slow is why a check of something at Telegram was not made.
const slow = "there was no time left for it: Telegram answers too slowly"

func whole(d time.Duration) string { return visible.Duration(d.Round(time.Second)) }

// maxPeople bounds how many approvers are looked for in a chat.
const maxPeople = 10

func lookAtChat(_ context.Context, p *patient) verdict {
	if p.remote.Err() != nil {
		return moot(slow)
	}
	v := p.lookAt(p.remote, "the gate's chat", "chat_id", p.cfg.Telegram.ChatID)
	if deputy := p.cfg.Attention.DeputyChatID; v.status == OK && deputy != 0 {
		if d := p.lookAt(p.remote, "the deputy's chat", "deputy_chat_id", deputy); d.status != OK {
			return d
		}
		v.what += ", and so is the deputy's"
	}
	return v
}

func (p *patient) lookAt(ctx context.Context, what, key string, id int64) verdict {
	chat, err := p.telegram.GetChat(ctx, id)
	who := fmt.Sprintf("%s %d", what, id)
	switch transport.ClassOf(err) {
	case "":
	case transport.ClassChatNotFound:
		if id > 0 {
			return failed(who+": "+err.Error()+"; "+key+" is wrong, or the person has not written to the bot yet", "in Telegram: open the bot and press Start")
		}
		return failed(who+": "+err.Error()+"; "+key+" is wrong, or the bot is not in the group", "in Telegram: add the bot to the group")
	case transport.ClassForbidden:
		return failed(who+": "+err.Error(), "in Telegram: add the bot to the group again")
	case transport.ClassMigrated:
		return failed(who+": "+err.Error()+"; the group has a new id", edit(p.cfg.File, 0))
	default:
		return failed(who+": "+err.Error(), "approvald doctor"+p.gateFlags())
	}
	if chat.Type == "private" {
		for _, a := range p.cfg.Approvers {
			if a.TelegramUserID == id {
				return fine(who + " is a private one with an approver")
			}
		}
		return failed(who+" is a private one with somebody who is no approver: nobody could decide", "approvald pair"+p.gateFlags())
	}
	bot, err := p.telegram.GetChatMember(ctx, id, p.botID)
	if err != nil {
		return failed(who+": what the bot may do there: "+err.Error(), "in Telegram: add the bot to the group")
	}
	if why, repair := mayNotWrite(chat, bot); why != "" {
		return failed(who+": "+why, repair)
	}
	return p.people(ctx, who, chat, id)
}

// mayNotWrite says what keeps the bot from writing to a group or channel, nothing when it may.
func mayNotWrite(chat transport.Chat, bot transport.ChatMember) (why, repair string) {
	switch {
	case bot.Status == "left" || bot.Status == "kicked":
		return "the bot is not in it (" + bot.Status + ")", "in Telegram: add the bot to the group"
	case bot.Status == "restricted" && !(bot.SendMessages && bot.SendDocuments):
		return "the bot may not write there (restricted)", "in Telegram: give the bot the right to send messages and files"
	case chat.Type == "channel" && !bot.PostMessages:
		return "the bot may not post in the channel", "in Telegram: make the bot an administrator with the right to post"
	case bot.Status == "member" && chat.Permissions != nil && !(chat.Permissions.SendMessages && chat.Permissions.SendDocuments):
		return "its members may not send messages and files, and the bot is one", "in Telegram: make the bot an administrator"
	default:
		return "", ""
	}
}

// people looks whether approvers are in the chat. Telegram need not know that of each.
func (p *patient) people(ctx context.Context, who string, chat transport.Chat, id int64) verdict {
	absent := 0
	list := p.cfg.Approvers[:min(len(p.cfg.Approvers), maxPeople)]
	for _, a := range list {
		m, err := p.telegram.GetChatMember(ctx, id, a.TelegramUserID)
		if err == nil && (m.Status == "left" || m.Status == "kicked") {
			absent++
		}
	}
	text := fmt.Sprintf("%s is a %s that the bot may write to", who, chat.Type)
	switch {
	case absent == len(p.cfg.Approvers):
		return failed(who+": no approver is in it", "in Telegram: add the approvers to the group")
	case absent > 0:
		text += fmt.Sprintf("; %s of %d not in it", count(absent, "approver"), len(p.cfg.Approvers))
	}
	return fine(text)
}

func lookAtWebhook(ctx context.Context, p *patient) verdict {
	if p.remote.Err() != nil {
		return moot(slow)
	}
	info, err := p.telegram.GetWebhookInfo(p.remote)
	if err != nil {
		return failed("what webhook is registered: "+err.Error(), "approvald doctor"+p.gateFlags())
	}
	ours := p.cfg.Transport.Mode == gate.ModeWebhook && info.URL == p.cfg.Transport.Webhook.URL
	serving := p.daemon(ctx) != nil
	switch {
	case info.URL == "" && polls(p) != "":
		return fine("none is registered, as it has to be when polling")
	case info.URL == "" && serving:
		return failed("none is registered, although the daemon runs", "approvald status"+p.gateFlags())
	case info.URL == "":
		return fine("none is registered; the daemon does that when it starts")
	case ours && info.Pending > 0 && info.LastErrorMessage != "":
		return failed(fmt.Sprintf("this gate's own is registered, and Telegram cannot deliver %s to it: %s", count(info.Pending, "update"), info.LastErrorMessage),
			p.curl("url", p.cfg.Transport.Webhook.URL, "-si -X POST")+" | head -1")
	case ours:
		return fine("this gate's own is registered")
	case polls(p) != "" && info.URL == p.noted() && !serving:
		return fine("one that this gate left behind is registered; the next start removes it")
	case polls(p) == "" && !serving:
		return failed("somebody else's is registered, at another address than this gate's: stop that program, or take the bot over",
			"approvald up --replace-webhook"+p.gateFlags())
	default:
		return failed("somebody else's is registered, so that taps go there: stop that program first, then take its webhook down", p.deleteWebhook())
	}
}

// deleteWebhook is a command that removes the registration without showing the token to the machine's users.
func (p *patient) deleteWebhook() string {
	read := "$(cat)"
	if p.tokenFile != "" {
		read = "$(cat " + quote(p.tokenFile) + ")"
	} else if env := p.cfg.Telegram.TokenEnv; env != "" {
		read = "$" + env
	}
	base := p.cfg.Telegram.APIBase
	if base != transport.DefaultAPIBase {
		base = `$(sed -n 's/^ *api_base *= *"\([^"]*\)".*/\1/p' ` + quote(p.cfg.File) + `)`
	}
	return `printf 'url = "%s/bot%s/deleteWebhook"\n' "` + base + `" "` + read + `" | curl -sS -K -`
}

// noted is the webhook that this gate's last daemon registered and has not removed, as its journal says.
func (p *patient) noted() string {
	deliveries := dispatch.NewDeliveries()
	journal, err := p.cfg.Paths().OpenJournal(approvallog.Options{Fold: deliveries, ReadDamaged: true})
	if err != nil {
		return ""
	}
	// Nothing was written through it.
	defer func() { _ = journal.Close() }()
	epoch, _ := deliveries.LastEpoch()
	return strings.TrimSpace(epoch.WebhookURL)
}
