package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, events  string
		ok, okInCI    bool
		want, wantNot []string
	}{
		{"all pass", `{"Action":"run","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Test":"TestX","Output":"noise\n"}
{"Action":"pass","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Output":"ok  \ta\t(cached)\n"}
{"Action":"pass","Package":"a","Elapsed":1.5}
`, true, true, []string{"ok\ta\t1.50s\t1 tests (cached)", "1 passed, 0 failed, 0 skipped"}, []string{"noise"}},
		{"one fails", `{"Action":"output","Package":"a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"want 1, got 2\n"}
{"Action":"fail","Package":"a","Test":"TestX"}
{"Action":"pass","Package":"a","Test":"TestY"}
{"Action":"fail","Package":"a","Elapsed":0.1}
`, false, false, []string{"want 1, got 2", "FAIL\ta", "failed: a TestX", "1 passed, 1 failed, 0 skipped"}, []string{"=== RUN"}},
		{"does not build", `{"ImportPath":"a","Action":"build-output","Output":"a.go:1: syntax error\n"}
{"ImportPath":"a","Action":"build-fail"}
{"Action":"fail","Package":"a","Elapsed":0}
{"Action":"pass","Package":"b","Test":"TestY"}
`, false, false, []string{"syntax error", "failed: a\n", "1 passed, 1 failed"}, nil},
		{"panics", `{"Action":"run","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Test":"TestX","Output":"panic: boom\n"}
{"Action":"fail","Package":"a"}
`, false, false, []string{"panic: boom", "0 passed, 1 failed"}, nil},
		{"one is skipped", `{"Action":"output","Package":"a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:3: needs Kafka\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"--- SKIP: TestX (0.00s)\n"}
{"Action":"skip","Package":"a","Test":"TestX"}
{"Action":"pass","Package":"a","Test":"TestY"}
{"Action":"skip","Package":"a","Test":"FuzzZ/seed#1"}
`, true, false, []string{"NOT RUN (1 skipped)", "  a TestX: x_test.go:3: needs Kafka\n", "1 passed, 0 failed, 1 skipped"}, []string{"FuzzZ"}},
		{"nothing runs", "go: no packages\n", false, false, []string{"go: no packages", "no test ran", "0 passed, 0 failed"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, ci := range []bool{false, true} {
				var out strings.Builder
				r := newReport(&out)
				r.read(strings.NewReader(c.events))
				ok := r.end(ci)
				want := c.ok
				if ci {
					want = c.okInCI
				}
				if ok != want {
					t.Errorf("in CI %v: ok is %v, want %v", ci, ok, want)
				}
				for _, w := range c.want {
					if !strings.Contains(out.String(), w) {
						t.Errorf("in CI %v: the report lacks %q:\n%s", ci, w, out.String())
					}
				}
				for _, w := range c.wantNot {
					if strings.Contains(out.String(), w) {
						t.Errorf("in CI %v: the report has %q:\n%s", ci, w, out.String())
					}
				}
			}
		})
	}
}
