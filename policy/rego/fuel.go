package rego

import "github.com/lossless-group/gateway/policy/rego/fuel"

// ErrBudget is in the private cause of a refusal because an evaluation used up its steps, its bytes or its time.
var ErrBudget = fuel.ErrBudget
