package app

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A look whether somebody runs holds a share of the lock for a moment; a start waits that moment.
func TestLookDoesNotRefuseAStart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	look := flock.New(filepath.Join(folder, lockFile))
	if err := look.RLock(); err != nil {
		t.Fatal(err)
	}
	unlocked := make(chan error, 1)
	time.AfterFunc(lockWait/6, func() { unlocked <- look.Unlock() })
	f, err := lockFolder(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-unlocked; err != nil {
		t.Error(err)
	}
	if running, err := Running(folder); err != nil || !running {
		t.Errorf("a folder that is locked: running %v, %v", running, err)
	}
	if _, err := lockFolder(t.Context(), folder); !errors.Is(err, ledger.ErrInUse) {
		t.Errorf("a second start: %v, want ErrInUse", err)
	}
	if err := f.unlock(); err != nil {
		t.Error(err)
	}
	if running, err := Running(folder); err != nil || running {
		t.Errorf("a folder that is free again: running %v, %v", running, err)
	}
}
