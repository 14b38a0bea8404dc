package rehearse

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// request is one asking, as the log tells it.
type request struct {
	key, class, requester, summary string
	asked                          time.Time
	outcome                        string // granted, rejected, expired, withdrawn, revoked; empty while it is pending
	decided                        time.Time
	started                        time.Time // when `approvald run` began to execute; zero if it did not
}

// readRequests reads the askings from the gate's log, oldest first. A log that is not there has none.
func readRequests(home string) ([]request, error) {
	text, err := os.ReadFile(filepath.Join(home, "log", "events.jsonl"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var list []request
	newest := map[string]int{}
	for line := range bytes.Lines(text) {
		if line[len(line)-1] != '\n' {
			break // half written
		}
		var r struct {
			TS        time.Time `json:"ts"`
			Event     string    `json:"event"`
			Actor     string    `json:"actor"`
			ActionKey string    `json:"action_key"`
			Payload   struct {
				Class   string `json:"class"`
				Summary string `json:"summary"`
			} `json:"payload"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		if r.Event == "approval.requested" {
			newest[r.ActionKey] = len(list)
			list = append(list, request{key: r.ActionKey, class: r.Payload.Class, requester: r.Actor, summary: r.Payload.Summary, asked: r.TS})
			continue
		}
		i, known := newest[r.ActionKey]
		if !known {
			continue
		}
		switch r.Event {
		case "approval.granted", "approval.rejected", "approval.expired", "approval.withdrawn":
			if list[i].outcome == "" {
				list[i].outcome, list[i].decided = r.Event[len("approval."):], r.TS
			}
		case "approval.revoked":
			list[i].outcome, list[i].decided = "revoked", r.TS
		case "execution.started":
			list[i].started = r.TS
		}
	}
	return list, nil
}
