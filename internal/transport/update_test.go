package transport

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDecodeUpdate(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	const big = 5_000_000_001
	alice := User{ID: big, FirstName: "A", Username: "alice"}
	aliceJSON := fmt.Sprintf(`{"id":%d,"is_bot":false,"first_name":"A","username":"alice"}`, int64(big))
	group := Chat{ID: -1001234567890, Type: "supergroup", Title: "Ops", IsForum: true}
	groupJSON := `{"id":-1001234567890,"type":"supergroup","title":"Ops","is_forum":true}`
	for name, tc := range map[string]struct {
		raw  string
		want Update
	}{
		"tap in a topic": {
			`{"update_id":1,"callback_query":{"id":"-5","from":` + aliceJSON + `,"message":{"message_id":9,"message_thread_id":4,"date":1700000000,"chat":` + groupJSON + `},"chat_instance":"77","data":"n1"}}`,
			Update{ID: 1, Tap: &Tap{ID: "-5", From: alice, ChatID: group.ID, MessageID: 9, ThreadID: 4, ChatInstance: "77", Data: "n1"}},
		},
		"tap on an inaccessible message": {
			`{"update_id":2,"callback_query":{"id":"1","from":` + aliceJSON + `,"message":{"message_id":9,"date":0,"chat":` + groupJSON + `},"data":"n1"}}`,
			Update{ID: 2, Tap: &Tap{ID: "1", From: alice, ChatID: group.ID, MessageID: 9, Inaccessible: true, Data: "n1"}},
		},
		"inline tap": {
			`{"update_id":3,"callback_query":{"id":"1","from":` + aliceJSON + `,"inline_message_id":"AgAA","data":"n1"}}`,
			Update{ID: 3, Tap: &Tap{ID: "1", From: alice, InlineMessageID: "AgAA", Data: "n1"}},
		},
		"reply to the bot": {
			`{"update_id":4,"message":{"message_id":10,"date":1700000000,"chat":` + groupJSON + `,"from":` + aliceJSON + `,"text":"no","reply_to_message":{"message_id":9,"chat":` + groupJSON + `,"from":{"id":42,"is_bot":true}}}}`,
			Update{ID: 4, Message: &Message{ID: 10, Date: now, Chat: group, From: &alice, Text: "no", ReplyTo: &MessageRef{ChatID: group.ID, ID: 9, FromBot: 42}}},
		},
		"anonymous administrator": {
			`{"update_id":5,"message":{"message_id":10,"date":1700000000,"chat":` + groupJSON + `,"from":{"id":1087968824,"is_bot":true},"sender_chat":` + groupJSON + `,"text":"yes"}}`,
			Update{ID: 5, Message: &Message{ID: 10, Date: now, Chat: group, From: &User{ID: 1087968824, IsBot: true}, SenderChat: &group, Text: "yes"}},
		},
		"migration": {
			`{"update_id":6,"message":{"message_id":10,"date":1700000000,"chat":{"id":-5,"type":"group"},"migrate_to_chat_id":-1001234567890}}`,
			Update{ID: 6, Message: &Message{ID: 10, Date: now, Chat: Chat{ID: -5, Type: "group"}, MigrateTo: -1001234567890}},
		},
		"kicked": {
			`{"update_id":7,"my_chat_member":{"chat":` + groupJSON + `,"from":` + aliceJSON + `,"date":1,"old_chat_member":{"status":"member"},"new_chat_member":{"status":"kicked"}}}`,
			Update{ID: 7, Chat: &ChatEvent{Chat: group, By: alice, Old: "member", New: "kicked"}},
		},
		"a kind that is not read":  {`{"update_id":8,"poll":{"id":1}}`, Update{ID: 8}},
		"nested 200 deep, ignored": {`{"update_id":9,"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, Update{ID: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeUpdate(json.RawMessage(tc.raw), now)
			tc.want.Received, tc.want.Raw = now, json.RawMessage(tc.raw)
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
}

func TestDecodeUpdateTellsForwardedWords(t *testing.T) {
	for member, want := range map[string]bool{
		``: false, `,"forward_origin":null`: false,
		`,"forward_origin":{"type":"user","date":5,"sender_user":{"id":9}}`: true,
		`,"forward_origin":{"type":"hidden_user"}`:                          true,
		`,"forward_from":{"id":9},"forward_date":5`:                         true,
	} {
		raw := `{"update_id":6,"message":{"message_id":10,"chat":{"id":-5},"text":"revoke"` + member + `}}`
		u, err := DecodeUpdate(json.RawMessage(raw), time.Time{})
		if err != nil || u.Message.Forwarded != want {
			t.Errorf("%s: forwarded %v, error %v", raw, u.Message.Forwarded, err)
		}
	}
}

func TestDecodeUpdateRefusesWithItsID(t *testing.T) {
	for raw, id := range map[string]int64{
		``: 0, `null`: 0, `[]`: 0, `{}`: 0, `{"update_id":"5"}`: 0, `{"update_id":1.5}`: 0, `{"update_id":1e30}`: 0,
		`{"update_id":5,"callback_query":[]}`:                                                   5,
		`{"update_id":5,"callback_query":{}}`:                                                   5,
		`{"update_id":5,"callback_query":{"id":"1"}}`:                                           5,
		`{"update_id":5,"callback_query":{"id":1,"from":{"id":1}}}`:                             5,
		`{"update_id":5,"callback_query":{"id":"1","from":{"id":"111"}}}`:                       5,
		`{"update_id":5,"callback_query":{"id":"1","from":{"first_name":"A"}}}`:                 5,
		`{"update_id":5,"callback_query":{"id":"1","from":{"id":1},"message":{"date":1}}}`:      5,
		`{"update_id":5,"callback_query":{"id":"1","from":{"id":99999999999999999999}}}`:        5,
		`{"update_id":5,"message":{"message_id":1}}`:                                            5,
		`{"update_id":5,"message":7}`:                                                           5,
		`{"update_id":5,"my_chat_member":{"chat":{"id":1}}}`:                                    5,
		`{"update_id":5,"my_chat_member":{"chat":{"id":1},"new_chat_member":{"status":false}}}`: 5,
	} {
		if u, err := DecodeUpdate(json.RawMessage(raw), time.Time{}); err == nil || u.ID != id {
			t.Errorf("%s: id %d, error %v; want id %d and an error", raw, u.ID, err, id)
		}
	}
}

func FuzzDecodeUpdate(f *testing.F) {
	f.Add([]byte(tapJSON(1, 2)))
	f.Add([]byte(`{"update_id":6,"message":{"message_id":10,"chat":{"id":-5},"reply_to_message":{"message_id":1}}}`))
	f.Add([]byte(`{"update_id":7,"my_chat_member":{"chat":{"id":1},"new_chat_member":{"status":"left"}}}`))
	f.Add([]byte(`{"update_id":5,"callback_query":{"id":"1","from":{"id":"1"}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		u, err := DecodeUpdate(raw, time.Time{})
		if err != nil {
			if u.Tap != nil || u.Message != nil || u.Chat != nil {
				t.Error("a refused update has content")
			}
			return
		}
		if u.Tap != nil && (u.Tap.ID == "" || u.Tap.From.ID == 0) {
			t.Errorf("a tap by nobody: %+v", u.Tap)
		}
		if u.Message != nil && (u.Message.Chat.ID == 0 || u.Message.ID == 0) {
			t.Errorf("a message from nowhere: %+v", u.Message)
		}
	})
}
