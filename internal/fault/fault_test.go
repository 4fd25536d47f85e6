package fault

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestDependencyAndWaitAreFoundInAnyOrder(t *testing.T) {
	t.Parallel()
	base := errors.New("503")
	for name, err := range map[string]error{
		"named first":  After(time.Minute, On("model", As(Unavailable, base))),
		"named last":   On("model", As(Unavailable, After(time.Minute, base))),
		"wrapped":      fmt.Errorf("ask: %w", As(Unavailable, fmt.Errorf("send: %w", On("model", After(time.Minute, base))))),
		"outer counts": On("model", After(time.Minute, On("other", After(time.Second, As(Unavailable, base))))),
	} {
		if DependencyOf(err) != "model" || AfterOf(err) != time.Minute || ClassOf(err) != Unavailable || !errors.Is(err, base) {
			t.Errorf("%s: %q, %s, %s", name, DependencyOf(err), AfterOf(err), ClassOf(err))
		}
	}
	if On("model", nil) != nil || After(time.Minute, nil) != nil {
		t.Error("nil became an error")
	}
	if DependencyOf(base) != "" || AfterOf(As(Fatal, base)) != 0 {
		t.Error("something came of nothing")
	}
}
