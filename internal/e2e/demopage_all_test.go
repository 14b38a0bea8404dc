//go:build all

package e2e

import (
	"slices"
	"strings"
	"testing"
)

// What the page needs the browser for: that each button is there and works, that what agents write stays text, that the page's own check of the
// chain is a check, that it can be used from the keyboard alone, in the dark and on a phone.
func TestDemoPageInABrowser(t *testing.T) {
	p := startDemoPage(t)
	b := startBrowser(t, 1440, 1000, false)
	b.open(p.address)
	b.await("its state", `document.body.dataset.ready && document.getElementById("daemon").textContent.includes("process")`)
	alice, bob := `[aria-label="Alice's phone"] .message:last-child`, `[aria-label="Bob's phone"] .message:last-child`
	ended := func(title, end string) {
		t.Helper()
		b.await(title+" to end with "+end, `[...document.querySelectorAll(".program")].find(a => a.textContent.includes(arguments[0]))?.querySelector(".end").textContent.startsWith(arguments[1])`, title, end)
	}

	b.click("#controls", "a shell command")
	b.await("a card", `document.querySelector(arguments[0])?.textContent.includes("cleanup-1")`, alice)
	b.click(alice, "Approve")
	ended("an agent wants to run a command", "exit 0")

	b.click("#controls", "a deploy")
	b.await("a card", `document.querySelector(arguments[0])?.textContent.includes("deploy-api-1")`, alice)
	b.click(alice, "Approve")
	b.await("one approval of two", `document.querySelector(arguments[0])?.textContent.includes("1 of 2")`, bob)
	b.shot("demo-one-of-two")
	b.click(bob, "Approve")
	ended("a deploy that two people have to approve", "exit 0")

	b.click("#controls", "something dressed up")
	b.await("a card", `document.querySelector(arguments[0])?.textContent.includes("harmless-1")`, bob)
	if n := b.js(`return document.querySelectorAll(".text a, .text b, .text script").length`); n != float64(0) {
		t.Errorf("an agent's text became %v elements", n)
	}
	b.shot("demo-hostile")
	b.click(bob, "Reject because")
	b.click(bob, "wrong environment")
	ended("an agent that tries to fool the person", "exit 3")

	b.click("#controls", "a long payload")
	b.await("a card", `document.querySelector(arguments[0])?.textContent.includes("migration-1")`, alice)
	b.click(`[aria-label="Alice's phone"]`, "Open")
	b.await("the document", `document.getElementById("file").open && document.getElementById("file-text").textContent.includes("DROP TABLE events_legacy")`)
	b.shot("demo-document")
	b.click("#file", "Close")

	b.click("#controls", "start a second one")
	ended("a second daemon", "exit 10")
	b.click("#controls", "kill -9")
	b.await("a dead daemon", `document.getElementById("daemon").textContent === "daemon: not running"`)
	b.click("#controls", "start")
	b.await("a daemon", `document.getElementById("daemon").textContent.includes("process")`)
	b.click(alice, "Approve")
	ended("a long payload", "exit 0")
	b.click("#controls", "switch to webhook")
	b.await("webhook mode", `document.getElementById("daemon").textContent.includes("webhook")`)
	b.click("#controls", "cut the network")
	b.await("no network", `document.getElementById("network").textContent === "network: cut"`)
	b.click("#controls", "mend the network")
	b.click("#controls", "answer 429")
	b.await("429", `document.getElementById("network").textContent.includes("429")`)
	b.click("#controls", "stop")
	b.await("a stopped daemon", `document.getElementById("daemon").textContent === "daemon: not running"`)

	b.await("every hash computed again", `/computed (\d+) of \1 hashes/.test(document.getElementById("verified").textContent)`)
	s := p.await("a verified log", func(s demoState) bool { return s.Verified.Status == "clean" && s.Verified.Records == len(s.Lines) })
	if n := b.js(`return document.querySelectorAll("#log-list .record.ok").length`); n != float64(len(s.Lines)) {
		t.Errorf("%v of %d records are marked as sound", n, len(s.Lines))
	}
	// The page's own check finds a record that was changed.
	b.js(`shown.lines[1] = shown.lines[1].replace("granted", "rejected"); showLog(); return checkLines()`)
	b.await("the forged record", `document.querySelectorAll("#log-list .record.broken").length > 0 && document.getElementById("chain").classList.contains("bad")`)
	b.shot("demo-forged")

	var events []string
	for _, line := range s.Lines {
		_, after, _ := strings.Cut(line, `"event":"`)
		event, _, _ := strings.Cut(after, `"`)
		events = append(events, event)
	}
	want := []string{
		"approval.requested", "approval.granted", "execution.started", "execution.completed", // the command
		"approval.requested", "approval.granted", // the deploy, by two
		"approval.requested", "approval.rejected", // what was dressed up
		"approval.requested", "approval.granted", // the long one, across a kill -9
	}
	if !slices.Equal(events, want) {
		t.Errorf("the log says %q, want %q", events, want)
	}
}

func TestDemoPageByKeyboardOnAPhoneInTheDark(t *testing.T) {
	p := startDemoPage(t)
	b := startBrowser(t, 390, 844, true)
	b.open(p.address)
	b.await("its state", `document.body.dataset.ready && document.getElementById("daemon").textContent.includes("process")`)
	if over := b.js(`return document.documentElement.scrollWidth - document.documentElement.clientWidth`); over != float64(0) {
		t.Errorf("the page is %v pixels wider than the screen", over)
	}
	const tab, enter = "\ue004", "\ue007"
	focus := func(label string) {
		t.Helper()
		for range 60 {
			if at, _ := b.js(`return document.activeElement.textContent`).(string); at == label {
				if b.js(`return document.activeElement.matches(":focus-visible")`) != true {
					t.Errorf("the focus on %q cannot be seen", label)
				}
				return
			}
			b.keys(tab)
		}
		t.Fatalf("%q is not reached with the Tab key", label)
	}
	focus("a shell command")
	b.keys(enter)
	b.await("a card", `document.querySelector(".keys")`)
	focus("Approve")
	b.keys(enter)
	b.await("its end", `document.querySelector(".program .end")?.textContent.startsWith("exit 0")`)
	b.js(`document.querySelector("#phones").scrollIntoView()`)
	b.shot("demo-phone-dark")
	if bare := b.js(`return [...document.querySelectorAll("button, input")].filter(n => !(n.textContent.trim() || n.getAttribute("aria-label"))).length`); bare != float64(0) {
		t.Errorf("%v controls have no name for a screen reader", bare)
	}
}
