package stage

import "testing"

func TestQuotedArgumentsReadBackAsTheyAre(t *testing.T) {
	got := CommandLine([]string{"approvald", "request", "deploy:api#41", "--summary", "it's time", "--note", "", "$(x)"})
	want := `approvald request deploy:api#41 --summary 'it'\''s time' --note '' '$(x)'`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
