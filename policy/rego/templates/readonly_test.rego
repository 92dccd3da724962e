package org.policy_test

import data.org.policy

question(tier) := {
	"action": "tool",
	"user": {"tier": tier},
	"capabilities": {"slide.edit": {"kind": "mutate"}, "slide.read": {"kind": "read"}},
	"capability": {"name": "slide.edit", "kind": "mutate"},
}

test_viewers_have_no_mutating_tools if {
	policy.disabled_capabilities == {"slide.edit"} with input as question("viewer")
	count(policy.tool_deny) == 1 with input as question("viewer")
}

test_others_have_them if {
	policy.disabled_capabilities == set() with input as question("user")
	policy.tool_deny == set() with input as question("user")
}
