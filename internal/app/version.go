package app

import (
	"errors"
	"runtime/debug"
)

// errEnough ends a listing that nobody reads any more.
var errEnough = errors.New("enough")

// Version is the program's version, as it was built.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
