package telegramtest_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	. "github.com/approvald/approvald/internal/telegramtest"
)

// TestArguments sends one message in every way a request can carry it.
func TestArguments(t *testing.T) {
	_, _, b := manual(t, Options{})
	mp := func(parts ...[3]string) [2]string {
		ct, body := form(t, parts...)
		return [2]string{ct, body}
	}
	const urlencoded, js = "application/x-www-form-urlencoded", "application/json"
	for _, c := range []struct {
		name    string
		query   string
		request [2]string // content type, body
		text    string    // of the message, or the description of the error
	}{
		{"form", "", [2]string{urlencoded, "chat_id=111&text=a+b%21"}, "a b!"},
		{"first of two", "", [2]string{urlencoded, "chat_id=111&text=a&text=b"}, "a"},
		{"query before body", "?text=q", [2]string{urlencoded, "chat_id=111&text=a"}, "q"},
		{"json", "", [2]string{js, `{"chat_id":111,"text":"a\u00e9"}`}, "aé"},
		{"json, chat as string", "", [2]string{js, `{"chat_id":"111","text":"a"}`}, "a"},
		{"json null is text", "", [2]string{js, `{"chat_id":111,"text":null}`}, "null"},
		{"json object as markup", "", [2]string{js, `{"chat_id":111,"text":"a","reply_markup":` + yesNo + `}`}, "a"},
		{"json string as markup", "", [2]string{js, `{"chat_id":111,"text":"a","reply_markup":"{\"inline_keyboard\":[]}"}`}, "a"},
		{"json with charset", "", [2]string{js + "; charset=utf-8", `{"chat_id":111,"text":"a"}`}, "a"},
		{"damaged json is ignored", "", [2]string{js, `{`}, "Bad Request: message text is empty"},
		{"json before the damage counts", "", [2]string{js, `{"text":"a",x`}, "Bad Request: chat_id is empty"},
		{"all but the damage", "", [2]string{js, `{"text":"a","chat_id":111,"x":`}, "a"},
		{"json array", "", [2]string{js, `[]`}, "Bad Request: message text is empty"},
		{"multipart", "", mp([3]string{"text", "", "a"}, [3]string{"chat_id", "", "111"}), "a"},
		{"multipart, file first", "", mp([3]string{"x", "x.txt", "zzz"}, [3]string{"text", "", "a"}, [3]string{"chat_id", "", "111"}), "a"},
		{"other content type", "?text=a", [2]string{"text/plain", "chat_id=111"}, "Bad Request: chat_id is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := b.body("sendMessage"+c.query, c.request[0], c.request[1])
			got := a.Description
			var m struct{ Text string }
			if a.OK {
				check(t, json.Unmarshal(a.Result, &m))
				got = m.Text
			}
			if got != c.text {
				t.Errorf("got %q, want %q", got, c.text)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	s, _, b := manual(t, Options{})
	for value, want := range map[string]bool{"true": true, " YES ": true, "1": true, "on": false, "0": false, "": false} {
		b.must(nil, "sendMessage", "chat_id", "111", "text", "a", "disable_notification", value)
		ms := s.Messages(111)
		if ms[len(ms)-1].Silent != want {
			t.Errorf("%q is %v", value, !want)
		}
	}
}

func TestUnreadableRequests(t *testing.T) {
	var files [][3]string
	for range 51 {
		files = append(files, [3]string{"f", "a", "x"})
	}
	manyType, many := form(t, files...)
	for _, c := range []struct {
		name, method      string
		contentType, body string
		encoding          string
		status            int
	}{
		{"over 1 MiB of parameters", http.MethodPost, "application/x-www-form-urlencoded", "text=" + strings.Repeat("a", 1<<20), "", 413},
		{"over 1 MiB of JSON", http.MethodPost, "application/json", `{"text":"` + strings.Repeat("a", 1<<20) + `"}`, "", 413},
		{"51 files", http.MethodPost, manyType, many, "", 413},
		{"no boundary", http.MethodPost, "multipart/form-data", "", "", 400},
		{"encoding", http.MethodPost, "application/json", "{}", "br", 415},
		{"method", http.MethodPut, "", "", "", 501},
	} {
		for _, front := range []Frontend{Cloud, Bare} {
			t.Run(c.name, func(t *testing.T) {
				s := RunT(t, Options{Frontend: front})
				b := newBot(t, s)
				r, err := http.NewRequest(c.method, b.url("sendMessage"), strings.NewReader(c.body))
				check(t, err)
				r.Header.Set("Content-Type", c.contentType)
				if c.encoding != "" {
					r.Header.Set("Content-Encoding", c.encoding)
				}
				a := b.do(t.Context(), r)
				isHTML := a.Header.Get("Content-Type") == "text/html" && strings.HasPrefix(a.Body, "<html>")
				if a.Status != c.status || front == Bare && a.Body != "" || front == Cloud && !isHTML {
					t.Errorf("got %d %q %v", a.Status, a.Body, a.Err)
				}
			})
		}
	}
}

func TestGzipBody(t *testing.T) {
	s, _, b := manual(t, Options{})
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, err := z.Write([]byte(`{"chat_id":111,"text":"packed"}`))
	check(t, err)
	check(t, z.Close())
	r, err := http.NewRequest(http.MethodPost, b.url("sendMessage"), &buf)
	check(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Content-Encoding", "gzip")
	if a := b.do(t.Context(), r); !a.OK || s.Messages(111)[0].Text != "packed" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}

func TestPathOutsideTheAPI(t *testing.T) {
	s, _, b := manual(t, Options{})
	r, err := http.NewRequest(http.MethodGet, s.URL()+"/file/x", nil)
	check(t, err)
	if a := b.do(t.Context(), r); a.Status != 404 || a.Description != "Not Found" {
		t.Errorf("got %d %q", a.Status, a.Description)
	}
}

func TestGetMe(t *testing.T) {
	s, _, b := manual(t, Options{Token: "42:abc", Bot: User{FirstName: "Gate", Username: "gate_bot"}})
	var me map[string]any
	b.must(&me, "getMe")
	for k, want := range map[string]any{
		"id": 42.0, "is_bot": true, "first_name": "Gate", "username": "gate_bot", "can_join_groups": true,
		"can_read_all_group_messages": false, "supports_inline_queries": false, "can_connect_to_business": false, "has_main_web_app": false,
	} {
		if me[k] != want {
			t.Errorf("%s is %v, want %v", k, me[k], want)
		}
	}
	if s.Bot().ID != 42 {
		t.Errorf("bot %+v", s.Bot())
	}
}

func TestGetChat(t *testing.T) {
	s, _, b := manual(t, Options{})
	s.AddChat(Chat{ID: -10, Type: Group, Title: "Ops", Members: Members(111)})
	s.AddChat(Chat{ID: -1001, Type: Supergroup, Title: "Forum", Username: "forum", IsForum: true})
	for id, want := range map[string]string{
		"111":    `"first_name":"Alice","type":"private"`,
		"-10":    `"title":"Ops","type":"group","all_members_are_administrators":false`,
		"@forum": `"username":"forum","type":"supergroup","is_forum":true,"active_usernames":["forum"],"permissions":{`,
	} {
		if a := b.must(nil, "getChat", "chat_id", id); !strings.Contains(string(a.Result), want) {
			t.Errorf("%s: %s", id, a.Result)
		}
	}
	s.AddChat(Chat{ID: -1004, Type: Supergroup, Bot: Restricted})
	s.AddChat(Chat{ID: -1006, Type: Channel, Bot: Administrator})
	for id, want := range map[string]string{
		"-10":   `"status":"member"`,
		"-1004": `"status":"restricted","user":{`,
		"-1006": `"can_post_messages":true`,
	} {
		a := b.must(nil, "getChatMember", "chat_id", id, "user_id", strconv.FormatInt(s.Bot().ID, 10))
		if !strings.Contains(string(a.Result), want) || strings.Contains(string(a.Result), `"can_send_messages":false`) != (id == "-1004") {
			t.Errorf("the bot in %s: %s", id, a.Result)
		}
	}
	s.SetMember(-10, Member{User: 112, Status: Administrator, Anonymous: true})
	for id, want := range map[string]string{"111": `"status":"member"`, "112": `"is_anonymous":true`, "42": ""} {
		if a := b.call("getChatMember", "chat_id", "-10", "user_id", id); a.OK != (want != "") || !strings.Contains(a.Body, want) {
			t.Errorf("%s: %s", id, a.Body)
		}
	}
}
