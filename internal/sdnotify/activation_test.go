package sdnotify

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain lets the test binary be the service that systemd starts: with the variable set it takes its sockets and says how that went.
func TestMain(m *testing.M) {
	if os.Getenv("SDNOTIFY_SERVICE") == "" {
		os.Exit(m.Run())
	}
	sockets := SocketsFromEnvironment()
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if _, there := os.LookupEnv(name); there {
			fmt.Println(name, "would reach the children")
		}
	}
	child := exec.Command("/bin/sh", "-c", "ls /proc/$$/fd")
	fds, err := child.Output()
	for fd := firstDescriptor; fd < firstDescriptor+sockets.Len(); fd++ {
		if err != nil || strings.Contains(" "+strings.Join(strings.Fields(string(fds)), " ")+" ", fmt.Sprintf(" %d ", fd)) {
			fmt.Printf("a child has descriptor %d: %s %v\n", fd, fds, err)
		}
	}
	l, err := sockets.Listener("webhook")
	switch {
	case errors.Is(err, ErrNotActivated):
		fmt.Println("none:", err)
	case err != nil:
		fmt.Println("refused:", err)
	default:
		conn, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(conn, "served\n")
			conn.Close()
		}
		fmt.Println("served", err)
	}
}

func TestSocketsFromSystemd(t *testing.T) {
	socket := func() (*os.File, string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f, l.Addr().String()
	}
	hook, address := socket()
	other, _ := socket()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, tc := range map[string]struct {
		environment string
		files       []*os.File
		want        string
	}{
		"by name":             {"LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=http:webhook", []*os.File{other, hook}, "served"},
		"the only one":        {"LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=approvald-webhook@prod.socket", []*os.File{hook}, "served"},
		"without names":       {"LISTEN_PID=$$ LISTEN_FDS=1", []*os.File{hook}, "served"},
		"two, none by name":   {"LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a:b", []*os.File{hook, other}, "refused: systemd passed 2 sockets"},
		"for another process": {"LISTEN_PID=1 LISTEN_FDS=1 LISTEN_FDNAMES=webhook", []*os.File{hook}, "none:"},
		"none":                {"A=b", nil, "none:"},
		"no number":           {"LISTEN_PID=$$ LISTEN_FDS=x", []*os.File{hook}, "refused: LISTEN_FDS"},
		"no socket":           {"LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=webhook", []*os.File{file}, "refused: descriptor 3"},
		"fewer than promised": {"LISTEN_PID=$$ LISTEN_FDS=9 LISTEN_FDNAMES=a:b:c:d:e:f:g:h:webhook", nil, "refused: descriptor 11"},
	} {
		t.Run(name, func(t *testing.T) {
			service := exec.Command("/bin/sh", "-c", tc.environment+` exec "$0"`, os.Args[0])
			service.Env = []string{"SDNOTIFY_SERVICE=1", "PATH=" + os.Getenv("PATH")}
			service.ExtraFiles = tc.files
			answered := make(chan string, 1)
			if tc.want == "served" {
				go func() {
					conn, err := net.Dial("tcp", address)
					if err != nil {
						answered <- err.Error()
						return
					}
					defer conn.Close()
					text, _ := io.ReadAll(conn)
					answered <- string(text)
				}()
			}
			out, err := service.CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), tc.want) {
				t.Fatalf("%v: %s", err, out)
			}
			if tc.want == "served" {
				if got := <-answered; got != "served\n" {
					t.Errorf("the caller got %q", got)
				}
			}
		})
	}
}
