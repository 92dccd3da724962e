package budgettest

import (
	"testing"

	"github.com/lossless-group/gateway/billing"
)

func TestMemoryConforms(t *testing.T) {
	Run(t, func(*testing.T) billing.BudgetStore { return NewMemory() })
}

func TestAThousandCallersNeverOverspend(t *testing.T) {
	for seed := range uint64(100) {
		if share := Rush(t, NewMemory(), seed, 1000, 1); share < 0.9 {
			t.Errorf("seed %d: only %.3f of the cap was used", seed, share)
		}
	}
}
