package cli

import (
	"strings"
	"testing"

	"rsc.io/qr"
)

// What is drawn is the code's own modules, with a light margin of four around it: a scanner sees the link.
func TestQRCodeIsDrawnModuleByModule(t *testing.T) {
	const link = "https://t.me/some_longer_gate_bot?start=ABCDEFGHIJKLMNOP"
	want, err := qr.Encode(link, qr.L)
	if err != nil {
		t.Fatal(err)
	}
	for _, colour := range []bool{true, false} {
		lines, err := qrCode(link, colour)
		if err != nil {
			t.Fatal(err)
		}
		// upper and lower module of each cell, back from what a terminal is given
		cells := strings.NewReplacer(
			"\x1b[38;5;16;48;5;16m▀", "3", "\x1b[38;5;16;48;5;231m▀", "1", "\x1b[38;5;231;48;5;16m▀", "2", "\x1b[38;5;231;48;5;231m▀", "0", "\x1b[0m", "",
			" ", "3", "▄", "1", "▀", "2", "█", "0")
		dark := func(x, y int) bool {
			row := cells.Replace(lines[(y+quiet)/2])
			return row[x+quiet]&(1<<((y+quiet)%2)) != 0
		}
		if rows := (want.Size + 2*quiet + 1) / 2; len(lines) != rows || len(lines) > 24 {
			t.Errorf("%d lines, want %d, and no more than a small terminal has", len(lines), rows)
		}
		for y := -quiet; y < want.Size+quiet; y++ {
			for x := -quiet; x < want.Size+quiet; x++ {
				if dark(x, y) != want.Black(x, y) {
					t.Fatalf("colour %v: module %d,%d is drawn dark: %v", colour, x, y, dark(x, y))
				}
			}
		}
	}
}
