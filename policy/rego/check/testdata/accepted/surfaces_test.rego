package org.policy_test

import data.org.policy

test_tokens_stay_off_the_agent if {
	some reason in policy.deny with input as {"auth": {"method": "api_token"}, "request": {"surface": "agent"}}
	reason.code == "token_surface"
}

test_people_may_use_the_agent if {
	count(policy.deny) == 0 with input as {"auth": {"method": "jwt"}, "request": {"surface": "agent"}, "conversation": {"messages": 3}, "user": {"actingFor": null}}
}

test_limits[name] if {
	some name, c in {"token": ["api_token", {"max_tokens": 2000}], "person": ["jwt", {}]}
	policy.limits == c[1] with input as {"auth": {"method": c[0]}}
}
