package cli

import (
	"strings"

	"rsc.io/qr"
)

// quiet is the light margin that scanners want around a code, in modules.
const quiet = 4

// qrCode draws text as a QR code of half blocks, two rows of modules a line. With colour it looks the same on dark and light terminals. Without,
// light modules are what is drawn, which is right on a dark one; most scanners read the opposite too.
func qrCode(text string, colour bool) ([]string, error) {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return nil, err
	}
	var lines []string
	for y := -quiet; y < code.Size+quiet; y += 2 {
		var b strings.Builder
		for x := -quiet; x < code.Size+quiet; x++ {
			b.WriteString(halves(code.Black(x, y), code.Black(x, y+1), colour))
		}
		if colour {
			b.WriteString("\x1b[0m")
		}
		lines = append(lines, b.String())
	}
	return lines, nil
}

// halves draws two modules, one above the other. Colours are of the 256 whose look no theme changes.
func halves(upper, lower, colour bool) string {
	const black, white = "16", "231"
	if !colour {
		return map[[2]bool]string{{true, true}: " ", {true, false}: "▄", {false, true}: "▀", {false, false}: "█"}[[2]bool{upper, lower}]
	}
	shade := map[bool]string{true: black, false: white}
	return "\x1b[38;5;" + shade[upper] + ";48;5;" + shade[lower] + "m▀"
}
