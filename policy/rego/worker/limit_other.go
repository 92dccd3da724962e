//go:build !unix

package worker

import (
	"errors"
	"time"
)

var errNoLimits = errors.New("this system has no limits a worker could be held to")

// limit refuses: without limits a worker is no protection.
func limit(int64, time.Duration) error { return errNoLimits }

func processCPU() (time.Duration, error) { return 0, errNoLimits }
