package engine_test

import "testing"

// TestStatusIsSafeBesideWork looks while steps run, for the race detector.
func TestStatusIsSafeBesideWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		running := 0
		for {
			select {
			case <-stop:
				stopped <- running
				return
			default:
			}
			for _, a := range e.Status() {
				for _, l := range a.Lanes {
					running = max(running, l.Attempt)
				}
			}
		}
	}()
	w.publish("a", numbered(50, 40)...)
	w.settle(e)
	close(stop)
	if <-stopped == 0 {
		t.Error("no running step was ever seen")
	}
}
