package org.policy_test

import data.org.policy

at(model, hour, weekday) := {"action": "chat", "time": {"hour": hour, "weekday": weekday}, "request": {"model": model}}

test_after_hours if {
	some reason in policy.deny with input as at("claude-opus-4-1", 20, "Monday")
	reason.code == "after_hours"
}

test_weekend if {
	count(policy.deny) == 1 with input as at("claude-opus-4-1", 10, "Sunday")
}

test_working_hours if {
	policy.deny == set() with input as at("claude-opus-4-1", 10, "Monday")
}

test_other_models if {
	policy.deny == set() with input as at("claude-haiku-4-5", 3, "Sunday")
}
