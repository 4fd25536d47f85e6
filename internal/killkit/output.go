package killkit

import (
	"bytes"
	"fmt"
	"os"
	"sync"
)

// output takes what a process writes: into a file that is bounded, and the last of it into memory.
type output struct {
	path string
	max  int64

	mu      sync.Mutex
	file    *os.File
	size    int64
	last    []byte
	changed chan struct{} // closed at the next write
}

// open begins a life of the process. What was written before stays in the file; lines are waited for in new output.
func (o *output) open() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = nil
	if o.path == "" {
		return nil
	}
	f, err := os.OpenFile(o.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the output file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("read the size of the output file: %w", err)
	}
	o.file, o.size = f, info.Size()
	return nil
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		_ = o.file.Close()
		o.file = nil
	}
	o.tell()
}

// Write never fails: a full disk mustn't stop the process under test.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = append(o.last, b...)
	if n := len(o.last) - tailBytes; n > tailBytes { // moved seldom
		o.last = append(o.last[:0], o.last[n:]...)
	}
	if o.file != nil {
		if o.size+int64(len(b)) > o.max/2 {
			o.turn()
		}
		if o.file != nil {
			n, _ := o.file.Write(b)
			o.size += int64(n)
		}
	}
	o.tell()
	return len(b), nil
}

// turn moves the file aside and begins a new one.
func (o *output) turn() {
	_ = o.file.Close()
	_ = os.Rename(o.path, o.path+".1")
	o.size = 0
	o.file, _ = os.OpenFile(o.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
}

func (o *output) tell() {
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// find tells whether the last output has a text, and gives a channel that is closed when there's more.
func (o *output) find(text string) (bool, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if bytes.Contains(o.last, []byte(text)) {
		return true, nil
	}
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return false, o.changed
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.last[max(0, len(o.last)-tailBytes):])
}
