package devservices

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// install gets Debian packages, where that's possible: apt-get is there and we are root. why is said with it.
func (d *desk) install(ctx context.Context, why string, packages ...string) error {
	names := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s: install what Debian calls %s", why, names)
	}
	if !root() {
		return fmt.Errorf("%s: run sudo apt-get install %s", why, names)
	}
	d.logf("%s: installing Debian's %s", why, names)
	begin := time.Now()
	apt := func(args ...string) error {
		_, err := runs(ctx, getLimit, func(ctx context.Context) *exec.Cmd {
			c := exec.CommandContext(ctx, "apt-get", append([]string{"-y", "-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
			c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
			return c
		})
		return err
	}
	args := append([]string{"install", "--no-install-recommends"}, packages...)
	// The package lists may be old or absent: brought up to date first.
	if err := apt("update"); err != nil {
		d.logf("%s: %v; trying with the package lists that are there", why, err)
	}
	if err := apt(args...); err != nil {
		return fmt.Errorf("%s: %w", why, err)
	}
	d.logf("%s: installed %s in %.0f s", why, names, time.Since(begin).Seconds())
	return nil
}
