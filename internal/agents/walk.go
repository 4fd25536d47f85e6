package agents

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/internal/config"
)

// mediaTypes are the extensions that the splitter reads.
var mediaTypes = map[string]string{
	".txt": "text/plain", ".text": "text/plain", ".md": "text/markdown", ".markdown": "text/markdown",
	".html": "text/html", ".htm": "text/html", ".xhtml": "text/html", ".pdf": "application/pdf",
}

// mediaTypeOf is by extension; a name that patterns let in without one that is known is plain text.
func mediaTypeOf(path string) string {
	if t := mediaTypes[strings.ToLower(filepath.Ext(path))]; t != "" {
		return t
	}
	return "text/plain"
}

// found is a file as the walk saw it, without opening it.
type found struct {
	file
	problem string // known from its kind or size alone
}

// walk is one look at the input folders. It follows no links to folders, so a loop ends; it opens nothing but
// folders, so a named pipe holds nobody up.
type walk struct {
	roots       []string
	exclude     []string
	patterns    []string
	maxDocument int64

	seen        map[string]bool // paths of found, since inputs may overlap
	visited     map[string]bool // folders, for the same reason
	found       []found
	unsupported int // files whose name nobody reads
	links       int // links to folders that are read where they are
	broken      []string
}

func (w *walk) run(ctx context.Context) error {
	w.seen, w.visited = make(map[string]bool), make(map[string]bool)
	for _, root := range w.roots {
		info, err := os.Stat(root)
		switch {
		case err != nil:
			w.broken = append(w.broken, root)
			w.add(root, filepath.Base(root), nil, "the input can't be read: "+reason(err))
		case info.IsDir():
			if err := w.folder(ctx, root, root); err != nil {
				return err
			}
		default:
			if info, err := os.Lstat(root); err == nil {
				w.entry(filepath.Dir(root), root, fs.FileInfoToDirEntry(info))
			}
		}
	}
	return nil
}

func (w *walk) folder(ctx context.Context, root, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.visited[path] || slices.Contains(w.exclude, path) {
		return nil
	}
	w.visited[path] = true
	entries, err := os.ReadDir(path)
	if err != nil && len(entries) == 0 {
		w.broken = append(w.broken, path)
		w.add(path, relative(root, path), nil, "the folder can't be read: "+reason(err))
		return nil
	}
	for _, e := range entries {
		p := filepath.Join(path, e.Name())
		if !e.IsDir() {
			w.entry(root, p, e)
			continue
		}
		if err := w.folder(ctx, root, p); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) entry(root, path string, e fs.DirEntry) {
	name := relative(root, path)
	info, err := e.Info()
	if err != nil {
		return // gone between listing and looking
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		if info = w.link(path, name, info); info == nil {
			return
		}
	}
	if !info.Mode().IsRegular() {
		w.add(path, name, info, "it's a "+kindOf(info.Mode())+", which is never opened; remove it from the input folder")
		return
	}
	if !w.supported(path) {
		w.unsupported++
		return
	}
	problem := ""
	switch {
	case info.Size() == 0:
		problem = "the file is empty; fill it, or remove it"
	case info.Size() > w.maxDocument:
		problem = fmt.Sprintf("the file has %s, and max_document is %s; raise it in swarm.yaml, or split the file",
			config.FormatSize(info.Size()), config.FormatSize(w.maxDocument))
	}
	w.add(path, name, info, problem)
}

// link looks at what a link leads to: a file is read through it, a folder never is. It returns nil where it has
// dealt with the link.
func (w *walk) link(path, name string, self fs.FileInfo) fs.FileInfo {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.add(path, name, self, "the link leads nowhere; remove it, or restore what it names")
		return nil
	case errors.Is(err, syscall.ELOOP):
		w.add(path, name, self, "the link leads back to itself; remove it")
		return nil
	case err != nil:
		w.add(path, name, self, "the link can't be followed: "+reason(err))
		return nil
	case !info.IsDir():
		return info
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		w.add(path, name, self, "the link can't be followed: "+reason(err))
		return nil
	}
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	switch {
	case err == nil && lies(target, real):
		w.add(path, name, self, "the link leads back to a folder that it's in, which makes a loop; it isn't followed, so remove it")
	case w.inside(target):
		w.links++ // what it leads to is read where it is
	default:
		w.add(path, name, self, "links to folders aren't followed; add "+target+" to the input if it's wanted")
	}
	return nil
}

// inside tells whether a folder is walked anyway.
func (w *walk) inside(target string) bool {
	for _, root := range w.roots {
		if real, err := filepath.EvalSymlinks(root); err == nil && lies(real, target) {
			return true
		}
	}
	return false
}

// lies tells whether path is folder, or lies in it.
func lies(folder, path string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, string(filepath.Separator))+string(filepath.Separator))
}

func (w *walk) supported(path string) bool {
	if len(w.patterns) == 0 {
		return mediaTypes[strings.ToLower(filepath.Ext(path))] != ""
	}
	for _, p := range w.patterns {
		if ok, err := filepath.Match(p, filepath.Base(path)); ok && err == nil {
			return true
		}
	}
	return false
}

func (w *walk) add(path, name string, info fs.FileInfo, problem string) {
	if w.seen[path] {
		return
	}
	w.seen[path] = true
	f := found{problem: problem}
	if !utf8.ValidString(path) {
		// Such a name has no place in an event; a quoted one tells which it is.
		path, name = fmt.Sprintf("%+q", path), fmt.Sprintf("%+q", name)
		f.problem = "the file's name isn't valid UTF-8; rename it"
	}
	if jsonLength(path)+jsonLength(name) > maxNames {
		f.problem = "the file's path is too long; give it a shorter name"
	}
	f.Path, f.Name = path, name
	f.Modified = time.Unix(0, 0)
	if info != nil {
		f.Size, f.Modified = info.Size(), modified(info)
	}
	w.found = append(w.found, f)
}

// modified is a file's time as it survives being stored in nanoseconds, even if it's centuries off.
func modified(info fs.FileInfo) time.Time { return time.Unix(0, info.ModTime().UnixNano()) }

func relative(root, path string) string {
	rel, err := filepath.Rel(root, path)
	if err != nil || rel == "." {
		return filepath.Base(path)
	}
	return filepath.ToSlash(rel)
}

// reason is an error of the file system without the path, which stands beside it.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "permission denied; give this user the right to read it"
	case errors.Is(err, fs.ErrNotExist):
		return "it doesn't exist"
	}
	return err.Error()
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "named pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}
