package rescue

import (
	"errors"
	"strings"
	"testing"
)

func TestAPanicIsAnErrorWithItsPartAndStack(t *testing.T) {
	failure := errors.New("disk gone")
	if err := Run("part", func() error { return failure }); err != failure {
		t.Errorf("got %v", err)
	}
	var nothing map[string]int
	err := Run("part", func() error { nothing["k"] = 1; return nil })
	var panicked *Error
	if !errors.As(err, &panicked) || panicked.Part != "part" || !strings.Contains(err.Error(), "rescue_test.go") {
		t.Errorf("got %v", err)
	}
	var told error
	Go("other", func(err error) { told = err }, func() { panic("luck") })
	if told == nil || !strings.HasPrefix(told.Error(), "other: panic: luck") {
		t.Errorf("told %v", told)
	}
}

func TestTheHookIsCalledAtEveryPoint(t *testing.T) {
	var points []string
	Hook(func(point string) { points = append(points, point) })
	defer Hook(nil)
	At("stage")
	Go("part", func(error) {}, func() {})
	Hook(nil)
	At("later")
	if got := strings.Join(points, " "); got != "stage part" {
		t.Errorf("came by %q", got)
	}
}
