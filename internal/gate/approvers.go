package gate

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"
)

// placeholders are the fixed ids under which Telegram shows senders that are no person: everybody
// who posts anonymously has the same one, so none of them can be an approver.
var placeholders = map[int64]string{
	1087968824: "the id of every anonymous group admin (GroupAnonymousBot)",
	136817688:  "the id of everybody who posts as a channel (Channel_Bot)",
	777000:     "the id of Telegram's own service messages",
}

const (
	approverRemedy = "write [[approvers]] with id = \"NAME\" and telegram_user_id = NUMBER"
	numericRemedy  = "write the person's numeric user id: user names can be released and taken by somebody else"
)

// Placeholder says whose id a Telegram user id is when it is one that many senders share; empty
// for the id of a person.
func Placeholder(userID int64) string { return placeholders[userID] }

func (c *Config) readApprovers(n *node) {
	names := make(map[string]string)
	users := make(map[int64]string)
	uids := make(map[uint32]string)
	tables := n.tables("approvers", approverRemedy+"; "+numericRemedy)
	for _, t := range tables {
		var a Approver
		a.ID = t.approverID(names)
		a.TelegramUserID = t.telegramUser(users)
		a.UID = t.uid(uids)
		t.rest()
		c.Approvers = append(c.Approvers, a)
	}
	if array, isArray := n.values["approvers"].([]any); !n.has("approvers") || (isArray && len(array) == 0) {
		n.fault("approvers", approverRemedy, "nobody is named, so nobody could ever decide")
	}
}

func (t *node) approverID(seen map[string]string) string {
	id, ok := t.str("id", "a short name in quotes")
	switch {
	case !t.has("id"):
		t.fault("id", "write a short name in quotes: the log will hold it as human:NAME", "is missing")
	case !ok:
	case !isApproverID(id):
		t.fault("id", "use 1 to 64 letters, digits, dots, - and _", "%q is no approver's name", clip(id))
	case seen[id] != "":
		t.fault("id", "give each person one entry", "%s is named at %s already", id, seen[id])
	default:
		seen[id] = t.path
	}
	return id
}

func (t *node) telegramUser(seen map[int64]string) int64 {
	const name = "telegram_user_id"
	v, ok := t.take(name)
	if !ok {
		t.fault(name, numericRemedy, "is missing")
		return 0
	}
	id, ok := v.(int64)
	switch {
	case !ok:
		t.fault(name, numericRemedy, "is %s", describe(v))
	case id < 0:
		t.fault(name, numericRemedy, "%d is a group or channel", id)
	case id == 0:
		t.fault(name, numericRemedy, "0 is nobody")
	case placeholders[id] != "":
		t.fault(name, numericRemedy, "%d is %s, not a person's", id, placeholders[id])
	case seen[id] != "":
		t.fault(name, "give each person one entry, or a quorum of two could be one person", "%d belongs to %s already", id, seen[id])
	default:
		seen[id] = t.path
	}
	return id
}

// uid takes the person's user id on this machine, nil for none.
func (t *node) uid(seen map[uint32]string) *uint32 {
	const name, want = "uid", "the person's numeric user id on this machine (id -u NAME)"
	v, ok := typed[int64](t, name, want)
	uid := uint32(v)
	switch {
	case !ok:
		return nil
	case v < 0 || v >= math.MaxUint32:
		t.fault(name, "write "+want, "%d is no user id", v)
		return nil
	case seen[uid] != "":
		t.fault(name, "give each user id to one person", "%d belongs to %s already", uid, seen[uid])
		return nil
	}
	seen[uid] = t.path
	return &uid
}

// Asks reports whether a request is the approver's own: made under their name, from their user id, or on their behalf.
func (a Approver) Asks(requester, onBehalfOf string, uid *uint32) bool {
	_, name, _ := strings.Cut(requester, ":")
	return strings.EqualFold(name, a.ID) || strings.EqualFold(onBehalfOf, a.Actor()) ||
		a.UID != nil && uid != nil && *uid == *a.UID
}

// ApproverByUserID answers the approver with this Telegram user id.
func (c Config) ApproverByUserID(userID int64) (Approver, bool) {
	i := slices.IndexFunc(c.Approvers, func(a Approver) bool { return a.TelegramUserID == userID })
	if i < 0 || userID <= 0 {
		return Approver{}, false
	}
	return c.Approvers[i], true
}

// ApproverByActor answers the approver whom the log calls actor, human:NAME.
func (c Config) ApproverByActor(actor string) (Approver, bool) {
	i := slices.IndexFunc(c.Approvers, func(a Approver) bool { return a.Actor() == actor })
	if i < 0 {
		return Approver{}, false
	}
	return c.Approvers[i], true
}

// ClassRule is one [[rules]] table: what it narrows for the classes that its pattern matches.
// Zero values narrow nothing.
type ClassRule struct {
	Class         string // a class, or a pattern in which * stands for any characters, dots included
	Quorum        int
	TTL           time.Duration
	Approvers     []string // ids
	FourEyes      bool     // who asked may not approve
	RejectReasons []string
}

const (
	maxRejectReasons     = 8
	maxRejectReasonRunes = 60
)

func (c *Config) readRules(n *node) {
	for _, t := range n.tables("rules", `write [[rules]] with class = "deploy.*"`) {
		r := ClassRule{}
		class, ok := t.str("class", `a class or a pattern in quotes, such as "deploy.*"`)
		switch {
		case !t.has("class"):
			t.fault("class", `write class = "deploy.*" or class = "*"`, "is missing")
		case ok && !isClassPattern(class):
			t.fault("class", "use lower-case letters, digits, -, _, dots and *", "%q is no class or pattern", clip(class))
		}
		r.Class = class
		r.Quorum = t.integer("quorum", 0, 1, 100)
		r.TTL = t.duration("ttl", 0, MinTTL, MaxTTL)
		r.Approvers = c.ruleApprovers(t)
		r.FourEyes = t.boolean("four_eyes")
		r.RejectReasons = t.rejectReasons()
		t.rest()
		c.Rules = append(c.Rules, r)
		c.checkRule(t, r)
	}
}

// checkRule finds a rule under which nothing could ever be granted.
func (c *Config) checkRule(t *node, r ClassRule) {
	have := len(c.narrow(r).Approvers)
	if quorum := max(c.Requests.Quorum, r.Quorum); have > 0 && quorum > have {
		t.fault("quorum", "lower it, or allow more approvers",
			"needs %d different approvers for %s, and %d are allowed", quorum, r.Class, have)
	}
}

func (c *Config) ruleApprovers(t *node) []string {
	const name, want = "approvers", `ids of [[approvers]]: ["alice", "bob"]`
	ids, ok := t.strings(name, want)
	if ok && len(ids) == 0 {
		t.fault(name, "name somebody, or leave the key out to allow all approvers", "nobody is named, so nobody could ever decide")
	}
	for i, id := range ids {
		key := t.key(name) + indexSuffix(i)
		switch {
		case !slices.ContainsFunc(c.Approvers, func(a Approver) bool { return a.ID == id }):
			t.faults.add(key, "write "+want, "%q is no approver of this gate", clip(id))
		case slices.Contains(ids[:i], id):
			t.faults.add(key, "name each approver once", "%s is named twice", id)
		}
	}
	return ids
}

func (t *node) rejectReasons() []string {
	const name, want = "reject_reasons", `short reasons: ["wrong environment", "not now"]`
	list, _ := t.strings(name, want)
	if len(list) > maxRejectReasons {
		t.fault(name, fmt.Sprintf("keep %d: each is a button", maxRejectReasons), "names %d reasons", len(list))
	}
	for i, reason := range list {
		if what := checkLine(reason, maxRejectReasonRunes); what != "" {
			t.faults.add(t.key(name)+indexSuffix(i), "write "+want, "%s", what)
		}
	}
	return list
}

// Rule is what holds for one class: the limits of the gate, narrowed by the first rule that
// matches.
type Rule struct {
	Pattern       string // the pattern that matched, empty for none
	Quorum        int
	TTL           time.Duration
	Approvers     []Approver
	FourEyes      bool
	RejectReasons []string
}

// Allows reports whether the rule lets this approver decide.
func (r Rule) Allows(a Approver) bool { return slices.Contains(r.Approvers, a) }

// Deciders are the approvers whose word counts for a request: all of the rule's, and under four eyes those of them who
// did not ask.
func (r Rule) Deciders(requester, onBehalfOf string, uid *uint32) []Approver {
	if !r.FourEyes {
		return r.Approvers
	}
	return slices.DeleteFunc(slices.Clone(r.Approvers), func(a Approver) bool { return a.Asks(requester, onBehalfOf, uid) })
}

// Rule answers what holds for a class. The first rule that matches counts; it can only narrow:
// more approvals, less time, fewer approvers than the gate has without it.
func (c Config) Rule(class string) Rule {
	for _, r := range c.Rules {
		if matchClass(r.Class, class) {
			return c.narrow(r)
		}
	}
	return Rule{Quorum: c.Requests.Quorum, TTL: c.Requests.TTL, Approvers: slices.Clone(c.Approvers)}
}

func (c Config) narrow(r ClassRule) Rule {
	n := Rule{
		Pattern:       r.Class,
		Quorum:        max(c.Requests.Quorum, r.Quorum),
		TTL:           c.Requests.TTL,
		Approvers:     slices.Clone(c.Approvers),
		FourEyes:      r.FourEyes,
		RejectReasons: slices.Clone(r.RejectReasons),
	}
	if r.TTL > 0 {
		n.TTL = min(n.TTL, r.TTL)
	}
	if r.Approvers != nil {
		n.Approvers = slices.DeleteFunc(n.Approvers, func(a Approver) bool { return !slices.Contains(r.Approvers, a.ID) })
	}
	return n
}

// matchClass matches a class against a pattern in which * stands for any characters.
func matchClass(pattern, class string) bool {
	// Neither can hold a slash or any other sign that path.Match gives a meaning to.
	ok, err := path.Match(strings.ReplaceAll(pattern, "**", "*"), class)
	return err == nil && ok
}
