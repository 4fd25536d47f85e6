package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/swarmlog/swarmlog/ledger"
)

// Names in a data folder.
const (
	LedgerFile  = "ledger.db"
	lockFile    = "lock"
	addressFile = "address.json"
)

// Address says where the process that runs on a data folder is reached.
type Address struct {
	HTTP   string `json:"http"`   // URL; "": it serves none
	Broker string `json:"broker"` // host:port for Kafka clients
	PID    int    `json:"pid"`
}

type folder struct {
	path string
	lock *flock.Flock
}

// lockWait is how long a start waits for the lock: those who only look whether somebody runs (Running) have a share of
// it for a moment, and must not make a start fail.
const lockWait = 300 * time.Millisecond

// lockFolder makes the data folder and takes it for this process. The lock is the kernel's, so it ends with the
// process, however that ends. It covers the broker and the ledger in it, which have locks of their own for those who
// open one of them alone.
func lockFolder(ctx context.Context, path string) (*folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w; name another one with --data", err)
	}
	lock := flock.New(filepath.Join(path, lockFile), flock.SetPermissions(0o600))
	waiting, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	ok, err := lock.TryLockContext(waiting, lockWait/20)
	if err != nil && (waiting.Err() == nil || ctx.Err() != nil) {
		return nil, fmt.Errorf("lock the data folder %s: %w", path, err)
	}
	if !ok {
		return nil, fmt.Errorf("data folder %s: %w%s: stop that one first, or give this one its own folder with --data",
			path, ledger.ErrInUse, holder(path))
	}
	// What an earlier process left would send readers to an address that nobody, or someone else, serves by now.
	if err := os.Remove(filepath.Join(path, addressFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("remove the old address file: %w", err), lock.Unlock())
	}
	return &folder{path, lock}, nil
}

func holder(path string) string {
	a, err := ReadAddress(path)
	if err != nil || a.PID == 0 {
		return ""
	}
	at := " (pid " + strconv.Itoa(a.PID)
	if a.HTTP != "" {
		at += ", " + a.HTTP
	}
	return at + ")"
}

func (f *folder) unlock() error {
	err := os.Remove(filepath.Join(f.path, addressFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.lock.Unlock())
}

// writeAddress tells other processes where this one is reached: whole or not at all, by renaming.
func (a *App) writeAddress() error {
	b, err := json.Marshal(Address{HTTP: a.httpAddr, Broker: a.BrokerAddr(), PID: os.Getpid()})
	if err != nil {
		return fmt.Errorf("write the address file: %w", err)
	}
	path := filepath.Join(a.config.Data, addressFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("write the address file: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the address file: %w", err)
	}
	return nil
}

// ReadAddress finds the process that runs on a data folder; fs.ErrNotExist where none does.
func ReadAddress(data string) (Address, error) {
	b, err := os.ReadFile(filepath.Join(data, addressFile))
	if err != nil {
		return Address{}, fmt.Errorf("find who runs on %s: %w", data, err)
	}
	var a Address
	if err := json.Unmarshal(b, &a); err != nil {
		return Address{}, fmt.Errorf("find who runs on %s: address file: %w", data, err)
	}
	if a.HTTP != "" && !strings.HasPrefix(a.HTTP, "http://") {
		return Address{}, fmt.Errorf("find who runs on %s: address file holds %q, which is no address", data, a.HTTP)
	}
	return a, nil
}

// Running tells whether a process has the data folder's lock.
func Running(data string) (bool, error) {
	path := filepath.Join(data, lockFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	lock := flock.New(path)
	ok, err := lock.TryRLock()
	if err != nil {
		return false, fmt.Errorf("look at the lock of %s: %w", data, err)
	}
	if !ok {
		return true, nil
	}
	return false, lock.Unlock()
}
