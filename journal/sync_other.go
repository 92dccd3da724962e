//go:build !linux

package journal

import "os"

// datasync is a full sync where the system has nothing cheaper.
func datasync(f *os.File) error { return f.Sync() }
