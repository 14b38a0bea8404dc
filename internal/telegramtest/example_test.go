package telegramtest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// A bot asks, a person taps, the bot answers. The bot is a few plain HTTP calls
// here; any library will do that lets its address be set.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s := telegramtest.New(telegramtest.Options{Clock: telegramtest.NewManualClock(time.Time{})})
	if err := s.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	alice := s.AddUser(telegramtest.User{ID: 111, FirstName: "Alice"})

	bot := func(method string, args url.Values, result any) {
		resp, err := http.PostForm(s.URL()+"/bot"+s.Token()+"/"+method, args)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		_ = json.NewDecoder(resp.Body).Decode(&struct{ Result any }{result})
	}
	bot("sendMessage", url.Values{
		"chat_id": {"111"}, "parse_mode": {"HTML"}, "text": {"Deploy <b>api</b>?"},
		"reply_markup": {`{"inline_keyboard":[[{"text":"Approve","callback_data":"yes"},{"text":"Reject","callback_data":"no"}]]}`},
	}, nil)

	phone := s.Phone(alice.ID)
	fmt.Print(telegramtest.Render(phone.Messages()[0], 40))
	tap, err := phone.Tap("Approve")
	if err != nil {
		fmt.Println(err)
		return
	}

	var updates []struct {
		Tap struct{ ID, Data string } `json:"callback_query"`
	}
	bot("getUpdates", url.Values{"timeout": {"30"}}, &updates)
	bot("answerCallbackQuery", url.Values{"callback_query_id": {updates[0].Tap.ID}, "text": {"Noted: " + updates[0].Tap.Data}}, nil)

	answer, err := tap.Wait(ctx)
	fmt.Println(answer, err)
	// Output:
	// ╭────────────────────╮
	// │ Deploy *api*?      │
	// │              12:00 │
	// ╰────────────────────╯
	// [ Approve ][ Reject  ]
	// toast: Noted: yes <nil>
}
