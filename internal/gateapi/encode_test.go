package gateapi

import (
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

func TestEncode(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	at := time.Date(2026, 8, 4, 10, 14, 2, 500_000_001, berlin)
	for _, tt := range []struct {
		name string
		v    any
		want string
	}{
		{"trailing zeros stay", at, `"2026-08-04T09:14:02.500Z"`},
		{"whole seconds too", at.Truncate(time.Second), `"2026-08-04T09:14:02.000Z"`},
		{"behind a pointer", Transport{Mode: "poll", LastSuccess: &at}, `{"mode":"poll","healthy":false,"last_success":"2026-08-04T09:14:02.500Z","error":""}`},
		{"no time", Transport{}, `{"mode":"","healthy":false,"last_success":null,"error":""}`},
		{"in lists that are never null", Status{Holder: &Holder{Since: at}, Undelivered: []Undelivered{{Key: "<k>", Since: at}}},
			`{"gate":"","holder":{"pid":0,"mode":"","since":"2026-08-04T09:14:02.500Z","epoch":0},"transport":{"mode":"","healthy":false,"last_success":null,"error":""},` +
				`"pending":0,"unsettled":0,"undelivered":[{"key":"<k>","reason":"","since":"2026-08-04T09:14:02.500Z"}],"undelivered_total":0,"troubles":[]}`},
		{"in a request", approvallog.Request{Key: "k", RequestedAt: at, Decision: &approvallog.Decision{At: at}},
			`{"key":"k","task":"","class":"","summary":"","requester":"","state":"","payload_hash":"","seq":0,"requested_at":"2026-08-04T09:14:02.500Z","quorum":0,` +
				`"decision":{"by":"","at":"2026-08-04T09:14:02.500Z","note":"","seq":0,"channel":""}}`},
		{"nil list", []string(nil), `[]`},
	} {
		got, err := Encode(tt.v)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: got %s, %v\nwant %s", tt.name, got, err, tt.want)
		}
	}
}
