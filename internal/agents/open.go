package agents

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

var (
	// errChanged says that a file isn't, or is no longer, what it was seen as.
	errChanged = errors.New("the file changed while it was read")
	// errNotRegular says that something else took the file's place since it was looked at.
	errNotRegular = errors.New("it isn't a regular file any more")
)

// openRegular opens a file for reading, and nothing but a file: a named pipe that took its place is neither waited
// for nor read.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	before, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, nil, errNotRegular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// digest reads f from its beginning, at most size bytes, and returns its SHA-256 in hex. It fails with errChanged
// where the file has another size or is written meanwhile. What is read goes to also as well, where that isn't nil.
func digest(ctx context.Context, f *os.File, before fs.FileInfo, also io.Writer) (string, error) {
	h := sha256.New()
	var to io.Writer = h
	if also != nil {
		to = io.MultiWriter(h, also)
	}
	n, err := io.Copy(to, io.LimitReader(&cancelled{ctx, f}, before.Size()+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", f.Name(), err)
	}
	after, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read %s: %w", f.Name(), err)
	}
	if n != before.Size() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return "", errChanged
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// cancelled ends reading when ctx does.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
