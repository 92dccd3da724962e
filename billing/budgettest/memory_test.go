package budgettest

import (
	"testing"

	"github.com/lossless-group/gateway/billing"
)

func TestMemoryConforms(t *testing.T) {
	Run(t, func(*testing.T) billing.BudgetStore { return NewMemory() })
}

func TestAThousandCallersNeverOverspend(t *testing.T) {
	sum := 0.0
	for seed := range uint64(100) {
		sum += Rush(t, NewMemory(), seed, 1000, 1)
	}
	// How much of a cap a thousand callers use who ask once and go is chance, so only the mean is held: a store that refuses without need
	// falls far below it.
	if share := sum / 100; share < 0.93 {
		t.Errorf("only %.3f of the cap was used in the mean", share)
	}
}
