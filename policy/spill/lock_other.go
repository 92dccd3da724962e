//go:build !unix

package spill

import "os"

// lockFile opens a file; here nothing keeps other processes from it.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
}
