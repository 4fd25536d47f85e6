//go:build unix

package e2e

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// trouble is something that can't be read, and what a person must be told of it.
type trouble struct {
	name   string
	reason string // part of it
	advice string // part of what it says to do
}

var troubles = []trouble{
	{"big.txt", "200MiB", "raise it in swarm.yaml, or split the file"},
	{"broken.pdf", "broken, or no PDF", "save it anew, or remove it"},
	{"truncated.pdf", "broken, or no PDF", "save it anew, or remove it"},
	{"password.pdf", "password", "save a copy without one"},
	{"empty.txt", "empty", "remove it"},
	{"blank.md", "no text", "remove it"},
	{"latin1.txt", "isn't UTF-8: byte 3 is 0xe9", "save it as UTF-8"},
	{"zeros.txt", "NUL", "remove it"},
	{"loop", "a loop", "remove it"},
	{"myself.txt", "back to itself", "remove it"},
	{"dangling.txt", "nowhere", "remove it, or restore"},
	{"pipe.txt", "named pipe", "remove it"},
	{"locked.txt", "permission denied", "give this user the right"},
	{"locked folder", "permission denied", "give this user the right"},
	{"outside", "links to folders", "to the input"},
}

var goodNames = []string{"plain.txt", "name with spaces and 🌙 émoji.md", "deep/er/page.html", "report.pdf", "linked.txt", "owner-password.pdf", "UPPER.TXT"}

// TestTroubles reads a folder in which much is wrong.
func TestTroubles(t *testing.T) {
	beside(t)
	scratch := t.TempDir()
	input := filepath.Join(scratch, "input")
	makeTroubles(t, input)
	swarm, err := os.ReadFile(filepath.Join(swarmFolder, "swarm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(scratch, "swarm.yaml"), swarm)
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(input, "locked folder"), 0o755) })

	for _, mode := range []string{"--log-level=warn", "--json"} {
		data := filepath.Join(scratch, "data", strings.Trim(mode, "-"))
		if err := os.MkdirAll(data, 0o777); err != nil {
			t.Fatal(err)
		}
		args := upArgs(data, []string{input}, "--exit-when-idle", mode)
		args[1] = scratch
		r := swarmlog(t, func(cmd *exec.Cmd) { asNobody(t, cmd, scratch, data) }, args...).wait(2 * time.Minute)
		if r.code != 0 {
			t.Fatalf("exit code %d: %s", r.code, tail(r.err, 4000))
		}
		if mode == "--json" {
			checkTroubles(t, r.summary(t))
			checkGood(t, data)
			checkMended(t, scratch, input, data)
		} else {
			checkPrinted(t, r)
		}
	}
}

func checkTroubles(t *testing.T, s summary) {
	t.Helper()
	if s.Documents != int64(len(goodNames)) || s.Records["waiting"] != 0 || len(s.Warnings) < len(troubles) {
		t.Errorf("%d documents of %d, records %v, %d warnings", s.Documents, len(goodNames), s.Records, len(s.Warnings))
	}
	for _, bad := range troubles {
		i := slices.IndexFunc(s.Warnings, func(w string) bool { return strings.HasPrefix(w, bad.name+": ") })
		if i < 0 {
			t.Errorf("no warning begins with %q", bad.name)
			continue
		}
		if !strings.Contains(s.Warnings[i], bad.reason) || !strings.Contains(s.Warnings[i], bad.advice) {
			t.Errorf("%q; want it to say %q and %q", s.Warnings[i], bad.reason, bad.advice)
		}
	}
	if t.Failed() {
		t.Logf("warnings:\n%s", strings.Join(s.Warnings, "\n"))
	}
	for _, w := range s.Warnings {
		for _, good := range goodNames {
			if strings.HasPrefix(w, good) {
				t.Errorf("a warning about a good file: %s", w)
			}
		}
	}
}

// checkGood wants the good files done.
func checkGood(t *testing.T, data string) {
	t.Helper()
	done := map[string]bool{}
	for _, p := range pagesOf(t, data) {
		done[p.Document] = true
		if p.Steps != 1 || p.Summary == "" {
			t.Errorf("%+v", p)
		}
	}
	for _, name := range goodNames {
		if !done[name] {
			t.Errorf("%s isn't done", name)
		}
	}
	if len(done) != len(goodNames) {
		t.Errorf("done are %v", done)
	}
}

// checkMended mends two files, removes one and copies one, and wants warnings of what is wrong now.
func checkMended(t *testing.T, scratch, input, data string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(input, name) }
	write(t, at("latin1.txt"), []byte("café au lait\n"))
	check(t, os.Chmod(at("locked.txt"), 0o644))
	check(t, os.Remove(at("broken.pdf")))
	copied, err := os.ReadFile(at("password.pdf"))
	check(t, err)
	write(t, at("password copy.pdf"), copied)

	args := upArgs(data, []string{input}, "--exit-when-idle", "--json")
	args[1] = scratch
	r := swarmlog(t, func(cmd *exec.Cmd) { asNobody(t, cmd, scratch, data) }, args...).wait(2 * time.Minute)
	warnings := r.summary(t).Warnings
	named := func(name string) bool {
		return slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, name+": ") })
	}
	for _, name := range []string{"latin1.txt", "locked.txt", "broken.pdf"} {
		if named(name) {
			t.Errorf("%s isn't wrong any more, but there are warnings: %q", name, warnings)
		}
	}
	for _, name := range []string{"password.pdf", "password copy.pdf", "truncated.pdf", "big.txt"} {
		if !named(name) {
			t.Errorf("no warning of %s: %q", name, warnings)
		}
	}
}

// checkPrinted looks at what people see.
func checkPrinted(t *testing.T, r result) {
	t.Helper()
	for _, bad := range troubles {
		if !strings.Contains(r.out, bad.name) || !strings.Contains(r.out, bad.reason) || !strings.Contains(r.out, bad.advice) {
			t.Errorf("the summary doesn't name %s with its reason", bad.name)
		}
	}
	if strings.Contains(r.err, "level=") {
		t.Errorf("the log says again what the summary says")
	}
	if t.Failed() || testing.Verbose() {
		t.Logf("printed:\n%s\n%s", r.out, r.err)
	}
}

func makeTroubles(t *testing.T, folder string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(folder, name) }
	write(t, at("plain.txt"), []byte("A plain text about lighthouses.\n"))
	write(t, at("UPPER.TXT"), []byte("Its name is shouted.\n"))
	write(t, at("name with spaces and 🌙 émoji.md"), []byte("# Names\n\nA name may have spaces and emoji.\n"))
	write(t, at("deep/er/page.html"), []byte("<html><body><p>A page of HTML, two folders down.</p></body></html>"))
	report, err := os.ReadFile(filepath.Join(swarmFolder, "documents", "a-short-history-of-logs.pdf"))
	check(t, err)
	write(t, at("report.pdf"), report)
	write(t, at("truncated.pdf"), report[:len(report)/3])
	write(t, at("broken.pdf"), append([]byte("%PDF-1.7\n"), bytes.Repeat([]byte("nonsense "), 1000)...))
	for _, name := range []string{"password.pdf", "owner-password.pdf"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		check(t, err)
		write(t, at(name), b)
	}
	write(t, at("empty.txt"), nil)
	write(t, at("blank.md"), []byte(" \n\t\n"))
	write(t, at("latin1.txt"), []byte("caf\xe9 au lait\n"))
	write(t, at("zeros.txt"), append([]byte("text and then "), 0, 0, 0))
	writeBig(t, at("big.txt"), 200<<20)
	check(t, os.Symlink("..", at("loop")))
	check(t, os.Symlink("myself.txt", at("myself.txt")))
	check(t, os.Symlink("nowhere.txt", at("dangling.txt")))
	write(t, filepath.Join(folder, "..", "elsewhere", "linked.txt"), []byte("A file that is linked from another folder.\n"))
	check(t, os.Symlink("../elsewhere/linked.txt", at("linked.txt")))
	check(t, os.Symlink("../elsewhere", at("outside")))
	check(t, syscall.Mkfifo(at("pipe.txt"), 0o644))
	write(t, at("locked.txt"), []byte("Nobody may read this.\n"))
	check(t, os.Chmod(at("locked.txt"), 0o000))
	write(t, at("locked folder/inside.txt"), []byte("Nor this.\n"))
	check(t, os.Chmod(at("locked folder"), 0o000))
}

func writeBig(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	check(t, err)
	line := bytes.Repeat([]byte("Line after line of a text that is far too long. "), 1024)
	for written := int64(0); err == nil && written < size; {
		var n int
		n, err = f.Write(line[:min(int64(len(line)), size-written)])
		written += int64(n)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekEnd)
	}
	check(t, err)
	check(t, f.Close())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// asNobody runs a command as an account without rights where the tests run as root, who may read everything.
func asNobody(t *testing.T, cmd *exec.Cmd, scratch, data string) {
	t.Helper()
	cmd.Dir = scratch
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	check(t, os.Chmod(filepath.Dir(scratch), 0o755))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	check(t, os.Chown(data, nobody, nobody))
}
