package demopage

import (
	"bytes"
	"errors"
	"testing"
)

func TestOnlyLoopback(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "192.0.2.1:80", "localhost", "example.com:80", "[::]:0"} {
		if err := Run(t.Context(), Options{Program: "/bin/false", Listen: address, Out: &bytes.Buffer{}}); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestLogLinesForPeople(t *testing.T) {
	for line, want := range map[string]string{
		`{"level":"warn","ts":"x","logger":"transport","msg":"no contact","for":"3s","n":2}` + "\n": "WARN no contact for=3s n=2",
		"approvald: k: granted\n": "approvald: k: granted",
		`{"key":"k"}` + "\n":      `{"key":"k"}`,
	} {
		if got := readable([]byte(line)); got != want {
			t.Errorf("%q reads %q, want %q", line, got, want)
		}
	}
}
